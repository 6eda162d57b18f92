# The numbers that replays, retries and pages report agree when they overlap.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Receiver;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

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

# Of retries and discards of the same dead letters in one transaction, the last one holds, and nothing is sent before it.
# A letter that is dead because its filter failed is delivered when it is retried.
my $dead = '/ok/dead';
endpoint($node, $receiver, 'dead', $dead, "topics => '{dead.*}', filter => '\$.total > 100'");
my %call = (
	retry => ["SELECT outbox.retry('dead')", "SELECT sum(outbox.retry('dead', event_id)) FROM outbox.dead_letters WHERE endpoint = 'dead'"],
	discard => ["SELECT outbox.discard('dead', topics => '{dead.n}')", "SELECT outbox.discard('dead', since => now() - interval '1 h')"]);
my $ten = q{SELECT count(outbox.emit('dead.n', '{"total": "much"}')) FROM generate_series(1, 10)};
my $letters = 0;
foreach my $calls ('retry retry discard', 'retry discard', 'discard retry discard', 'retry discard retry discard')
{
	my $n = 0;
	$letters += 10;
	ask($ten);
	ok(wait_sql($node, "SELECT dead = 10 FROM outbox.stats WHERE endpoint = 'dead'"), 'dead letters');
	is(ask('BEGIN; ' . join('; ', map { $call{$_}[ $n++ % 2 ] } split ' ', $calls) . '; COMMIT'),
		join("\n", (10) x $n), "$calls: each says how many it concerns");
	ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'all are carried out');
	ok(wait_settled($node), 'settled');
	is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'dead' AND reason = 'discarded'"), $letters, 'the last one holds');
	is(scalar(() = $receiver->requests(path => $dead)), 0, 'nothing is sent');
}
foreach my $calls ('discard retry', 'retry discard retry')
{
	ask($ten);
	ok(wait_sql($node, "SELECT dead = 10 FROM outbox.stats WHERE endpoint = 'dead'"), 'dead letters');
	ask('BEGIN; ' . join('; ', map { $call{$_}[0] } split ' ', $calls) . '; COMMIT');
	ok(wait_sql($node, "SELECT dead = 0 AND retrying = 0 FROM outbox.stats WHERE endpoint = 'dead'"), "$calls: settled");
	is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'dead' AND reason = 'discarded'"), $letters, 'the last one holds');
}
is(scalar(() = $receiver->delivered(path => $dead)), 20, 'each is delivered once');

# A discard that is committed after another session's retry was carried out, and before its letters are sent
ask($ten);
ok(wait_sql($node, "SELECT dead = 10 FROM outbox.stats WHERE endpoint = 'dead'"), 'dead letters');
ask("SELECT outbox.pause_endpoint('dead')");
my $session = $node->background_psql('postgres');
is($session->query("BEGIN; SELECT outbox.discard('dead')"), 10, 'a discard that is not committed');
is(ask("SELECT outbox.retry('dead')"), 10, 'a retry that is');
ok(wait_sql($node, "SELECT retrying = 10 AND dead = 0 FROM outbox.stats WHERE endpoint = 'dead'"), 'and is carried out');
$session->query_safe('COMMIT');
$session->quit;
ok(wait_sql($node, "SELECT retrying = 0 AND dead = 0 FROM outbox.stats WHERE endpoint = 'dead'"), 'the discard holds');
ask("SELECT outbox.resume_endpoint('dead')");
ok(wait_settled($node), 'settled');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'dead' AND reason = 'discarded'"), $letters + 10, 'all are discarded');
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
