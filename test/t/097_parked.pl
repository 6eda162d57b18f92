# A retry costs the same whatever else lies in outbox.parked: rows that VACUUM may
# not remove, dead letters, the same events of other endpoints.  What the worker
# reads there is counted by the indexes.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

# A worker's counters are all there when it is gone.
sub entries_read
{
	my $pid = worker_pid($node);

	ask("SELECT pg_terminate_backend($pid)");
	new_worker($node, $pid);
	return ask("SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE relid = 'outbox.parked'::regclass");
}

my $last = entries_read();

sub reads_at_most
{
	my ($most, $name) = @_;

	ok(wait_sql($node, 'SELECT sum(blocked + retrying + processing + pending) = 0 FROM outbox.stats'),
		"$name: settled");
	my $all = entries_read();
	my $n = $all - $last;

	cmp_ok($n, '>', 0, "$name: rows are read");
	cmp_ok($n, '<', $most, "$name: but few ($n)");
	$last = $all;
	return;
}

my $soon = "backoff_base => '10 ms', backoff_max => '10 ms'";

# A snapshot keeps the rows of what was delivered.  Each of 200 events is the head
# of their key in turn, and fails; up to 64 are brought back with it.
my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
endpoint($node, $receiver, 'held', '/flaky/held?first=1', "topics => '{held.*}', $soon");
ask("SELECT count(outbox.emit('held.n', jsonb_build_object('n', n), key => 'h')) FROM generate_series(1, 200) n");
$receiver->wait_delivered(200, path => '/flaky/held');
is_deeply([ map { JSON::PP::decode_json($_->{body})->{data}{n} } $receiver->delivered(path => '/flaky/held') ],
	[ 1 .. 200 ], 'one key whose every head fails: in order');
reads_at_most(200 * 64 * 1.7, 'rows that are kept for a snapshot');

# What ANALYZE sees now is a large table with next to nothing in it.
ask('ANALYZE outbox.parked');
ask("SELECT outbox.drop_endpoint('held')");
$holder->query_safe('COMMIT');
$holder->quit;

# Many endpoints that fail at the same events
endpoint($node, $receiver, "same$_", "/flaky/same$_?first=1", "topics => '{same.*}', ordering => 'none', $soon")
  foreach 1 .. 40;
ask("SELECT count(outbox.emit('same.n', '{}'::jsonb)) FROM generate_series(1, 40) n");
$receiver->wait_delivered(40, path => "/flaky/same$_") foreach 1 .. 40;
reads_at_most(40 * 40 * 12, 'the same events of other endpoints');
ask("SELECT outbox.drop_endpoint('same' || n) FROM generate_series(1, 40) n");

# Many dead letters
endpoint($node, $receiver, 'dead', '/flaky/dead?first=1', "topics => '{dead.*}', ordering => 'none', $soon");
ask("SELECT count(outbox.emit('dead.n', '{}'::jsonb, expires_at => clock_timestamp() - interval '1 s'))"
	  . ' FROM generate_series(1, 3000)');
ok(wait_sql($node, "SELECT dead = 3000 FROM outbox.stats WHERE endpoint = 'dead'"), '3,000 dead letters');
$last = entries_read();
for my $i (1 .. 50)
{
	emit($node, 'dead.n', '{}');
	$receiver->wait_delivered($i, path => '/flaky/dead');
}
# A worker that starts reads all 3,000, and so does the next one.
reads_at_most(2 * 3000 + 50 * 12, 'beside dead letters');

$node->stop;
done_testing();
