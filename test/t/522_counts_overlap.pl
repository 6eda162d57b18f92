# What replays, retries and pages say of how many they are agrees when they overlap.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Receiver;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

endpoint($node, $receiver, 'one', '/ok/one', "topics => '{load.*}', max_in_flight => 100");
ask("SELECT count(outbox.emit('load.n', '{}')) FROM generate_series(1, 3000)");
ok(wait_sql($node, "SELECT delivered = 3000 FROM outbox.stats"), 'delivered');
$receiver->control(path => '/ok/one', behave => '/slow/one?ms=20');
my @said;
push @said, ask("SELECT outbox.replay('one', now() - interval '1 h')") foreach 1 .. 2;
$receiver->wait_delivered(3400, path => '/ok/one');
push @said, ask("SELECT outbox.replay('one', now() - interval '1 h')");
is("@said", '3000 3000 3000', 'three replays that overlap say the same');
$receiver->control(path => '/ok/one', behave => '/ok/one');
ok(wait_sql($node, 'SELECT count(*) = 3 FROM outbox.replay_progress WHERE finished_at IS NOT NULL'), 'all end');
is(ask('SELECT string_agg(events::text, $$ $$) FROM outbox.replay_progress'), '3000 3000 3000', 'and come to the same');
ok(wait_sql($node, "SELECT pending = 0 AND retrying = 0 FROM outbox.stats"), 'settled');

# Retries and a discard of the same dead letters, in one transaction and in several
endpoint($node, $receiver, 'dead', '/status/500/dead', "topics => '{dead.*}', max_attempts => 1");
ask("SELECT count(outbox.emit('dead.n', '{}')) FROM generate_series(1, 10)");
ok(wait_sql($node, "SELECT dead = 10 FROM outbox.stats WHERE endpoint = 'dead'"), 'dead letters');
is(ask("BEGIN; SELECT outbox.retry('dead'); SELECT outbox.retry('dead'); SELECT outbox.discard('dead'); COMMIT"),
	"10\n10\n10", 'each says how many it concerns');
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.commands"), 'and all are carried out');
endpoint($node, $receiver, 'again', '/status/500/again', "topics => '{again.*}', max_attempts => 1");
ask("SELECT count(outbox.emit('again.n', '{}')) FROM generate_series(1, 10)");
ok(wait_sql($node, "SELECT dead = 10 FROM outbox.stats WHERE endpoint = 'again'"), 'dead letters');
$receiver->control(path => '/status/500/again', behave => '/ok/again');
is(ask("BEGIN; SELECT outbox.retry('again'); SELECT outbox.retry('again'); COMMIT"), "10\n10", 'retried twice');
ok(wait_sql($node, "SELECT dead = 0 AND retrying = 0 AND delivered = 10 FROM outbox.stats WHERE endpoint = 'again'"), 'and delivered once');

# A page of a rare topic reads a bounded part of the log
ask("SELECT outbox.pause_endpoint('one'); SELECT count(outbox.emit('load.n', '{}')) FROM generate_series(1, 100000)");
my $read = "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_all_tables WHERE relname ~ '^(events_[0-2]|kept_events|parked)\$'";
foreach my $call (
	"deliveries_page('one', topics => '{load.rare}')",
	"deliveries_page('one', status => 'delivered', topics => '{load.rare}')",
	"deliveries_page('dead')",
	"attempts_page('dead')")
{
	my $rows = ask("BEGIN; SELECT count(*) FROM outbox.$call; $read; COMMIT");
	cmp_ok((split /\n/, $rows)[1], '<', 90000, "outbox.$call");
}
$node->stop;
done_testing();
