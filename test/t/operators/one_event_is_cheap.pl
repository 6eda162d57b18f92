# To resend, retry, discard or cancel one event reads few rows, and a session plans it once.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'pg_stat_statements is not installed' unless is_installed('pg_stat_statements');

my ($many, $calls) = (3_000, 12);
my $node = outbox_node('main', conf => <<'CONF');
shared_preload_libraries = 'outbox, pg_stat_statements'
pg_stat_statements.track = none
pg_stat_statements.track_planning = on
autovacuum = off
jit = on
jit_above_cost = 0
CONF
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

ask('CREATE EXTENSION pg_stat_statements');
endpoint($node, $receiver, 'e', '/ok/e', "topics => '{a}'");
endpoint($node, $receiver, 'd', '/ok/d', "topics => '{none}'");
endpoint($node, $receiver, 'p', '/ok/p', "topics => '{p}'");
ask("SELECT outbox.pause_endpoint('d'); SELECT outbox.pause_endpoint('p')");
ask("SELECT count(outbox.emit(t, '{}', key => 'k' || n % 100)) FROM generate_series(1, $many) n, unnest('{a,c,p}'::text[]) t");
ok(wait_sql($node, "SELECT delivered = $many FROM outbox.stats WHERE endpoint = 'e'"), 'many are delivered');
ask(park_as_dead("s.name = 'd' AND e.topic = 'c'"));

foreach my $call ([ resend => 'e', 'a' ], [ retry => 'd', 'c' ], [ discard => 'd', 'c' ], [ cancel => 'p', 'p' ])
{
	my ($function, $endpoint, $topic) = @$call;
	my @ids = split /\n/, ask("SELECT id FROM outbox.events WHERE topic = '$topic' ORDER BY seq OFFSET $many / 2 LIMIT $calls");
	my @calls = map { "SELECT outbox.$function(" . ($function eq 'cancel' ? "'$_', '$endpoint'" : "'$endpoint', '$_'") . ') \g /dev/null' } @ids;
	my $last = pop @calls;
	my ($read, $compiled, @planned) = split /\n/, ask(<<"SQL");
@{[join "\n", @calls]}
SET pg_stat_statements.track = 'all';
SELECT pg_stat_statements_reset(), pg_stat_force_next_flush() \\g /dev/null
BEGIN;
$last
SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_all_tables WHERE schemaname = 'outbox';
ROLLBACK;
SELECT sum(jit_functions) FROM pg_stat_statements WHERE NOT toplevel;
SELECT query FROM pg_stat_statements WHERE plans > 0 AND NOT toplevel AND query ~ 'outbox\\.(parked|deliveries|all_events|commands)';
SQL
	is($compiled, 0, "$function compiles nothing");
	is("@planned", '', "$function plans nothing");
	cmp_ok($read, '<', 200, "and reads $read rows");
}
$node->stop;
done_testing();
