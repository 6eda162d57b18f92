# A session plans what it asks the portal once, and a call does not ask for one thing twice.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'pg_stat_statements is not installed' unless is_installed('pg_stat_statements');

# the worker sends nothing, so that only the calls are counted
my $node = outbox_node('main', conf => <<'CONF');
shared_preload_libraries = 'outbox, pg_stat_statements'
pg_stat_statements.track = all
pg_stat_statements.track_planning = on
outbox.enabled = off
autovacuum = off
CONF
ask('CREATE EXTENSION pg_stat_statements');
ask("SELECT outbox.create_endpoint('e', 'https://example.com/', tenant => 't')");
ask('SELECT outbox.set_portal_limits(max_endpoints => 100, max_calls => 100000)');
my $event = ask(q(SELECT outbox.emit('a', '{"n": 1}', tenant => 't')));

# So many statements inside of a call, and functions of outbox
my %most = (
	q(portal_create_endpoint('t', 'https://example.com/', '{"topics": ["a"], "label": "x"}', name => 'new-N', idempotency_key => 'N')) => [ 49, 46 ],
	q(portal_alter_endpoint('t', 'e', '{"label": "x-N"}')) => [ 47, 40 ],
	q(portal_alter_endpoint('t', 'e', '{"url": "https://example.com/N", "filter": "$.n < N"}')) => [ 51, 47 ],
	"portal_delivery('t', 'e', '$event')" => [ 33, 50 ],
	"portal_endpoints('t', 'e')" => [ 7, 12 ],
	"portal_deliveries('t', 'e')" => [ 12, 34 ],
	"portal_attempts('t', 'e')" => [ 10, 15 ],
	"portal_figures('t')" => [ 6, 6 ],
	"portal_pause_endpoint('t', 'e')" => [ 13, 17 ],
	"portal_resume_endpoint('t', 'e')" => [ 27, 27 ],
	"portal_rotate_secret('t', 'e')" => [ 29, 34 ],
	"portal_replays('t', 'e')" => [ 9, 10 ]);
my $n = 0;
foreach my $call (sort keys %most)
{
	my @calls = map { my $number = ++$n; 'SELECT outbox.' . $call =~ s/N/$number/gr . ' \g /dev/null' } 1 .. 12;
	my $last = pop @calls;
	my ($found, @planned) = split /\n/, ask(<<"SQL");
SET track_functions = 'all';
@{[join "\n", @calls]}
SELECT pg_stat_statements_reset(), pg_stat_force_next_flush() \\g /dev/null
BEGIN;
$last
SELECT (SELECT sum(calls) FROM pg_stat_statements WHERE NOT toplevel), (SELECT sum(calls) FROM pg_stat_xact_user_functions WHERE schemaname = 'outbox');
COMMIT;
SELECT query FROM pg_stat_statements WHERE plans > 0 AND NOT toplevel;
SQL
	my ($statements, $functions) = split /\|/, $found;

	is("@planned", '', "$call plans nothing");
	cmp_ok($statements, '<=', $most{$call}[0], 'statements in it');
	cmp_ok($functions, '<=', $most{$call}[1], 'calls of functions in it');
}
$node->stop;
done_testing();
