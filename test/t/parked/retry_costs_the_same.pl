# A retry costs the same whatever else is in outbox.parked.
# There are rows that VACUUM may not remove, dead letters, and the same events of other
# endpoints.  What the worker reads there is counted by the statistics of the indexes.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub entries_read
{
	replace_worker($node);
	return ask("SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE relid = 'outbox.parked'::regclass");
}

# What VACUUM finds empty is full soon after.
ask('VACUUM ANALYZE outbox.events');
ask("VACUUM ANALYZE outbox.events_$_") foreach 0 .. 2;
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

sub wait_rotation
{
	my ($log) = @_;
	my $since = ask("SELECT since FROM outbox.pieces WHERE log = '$log'");

	wait_sql($node, "SELECT since > '$since' FROM outbox.pieces WHERE log = '$log'");
	return;
}

my $soon = "backoff_base => '10 ms', backoff_max => '10 ms'";

# Many retries of one endpoint without keys.  Entries of an index that are passed over are
# not counted, but the pages that have them are.
endpoint($node, $receiver, 'alone', '/mixed/alone?fail=0.4',
	"topics => '{alone.*}', backoff_base => '1 s', backoff_max => '1 s'");
ask("SELECT count(outbox.emit('alone.n', '{}'::jsonb)) FROM generate_series(1, 2500)");
$receiver->wait_delivered(2500, path => '/mixed/alone');
my $failed = ask('SELECT count(*) FROM outbox.attempts WHERE error IS NOT NULL');
reads_at_most($failed * 12, 'retries of one endpoint');
my $pages = ask('SELECT sum(idx_blks_hit + idx_blks_read) FROM pg_statio_all_indexes'
	  . " WHERE indexrelname IN ('parked_heads_idx', 'parked_due_idx')");
cmp_ok($pages, '<', $failed * 4, "no retry is looked for among the others of its endpoint ($pages pages)");
ask("SELECT outbox.drop_endpoint('alone')");

# A snapshot keeps the rows of what was delivered.  Each of 200 events is the head
# of their key in turn, and fails.  Up to 64 are brought back with it.
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
# A worker that starts reads all 3,000 several times, and so does the next one.
reads_at_most(10 * 3000, 'beside dead letters');

cmp_ok(ask("SELECT sum(idx_scan) FROM pg_stat_all_indexes WHERE indexrelname ~ '^events_[0-2]_xid_seq_idx\$'"),
	'<', 1000, 'and all events are found by their seq');

# Their piece is emptied, and others after it: what is parked is not looked up in
# each of them.
my $lookups = "SELECT sum(idx_scan) FROM pg_stat_all_indexes WHERE indexrelname ~ '^events_[0-2]_seq_idx\$'";
$node->append_conf('postgresql.conf', "outbox.retention = 2s\n");
$node->reload;
ok(wait_sql($node, 'SELECT count(*) = 3000 FROM outbox.kept_events'), 'they are kept');
entries_read();
my $looked_up = ask($lookups);
for (1 .. 3)
{
	emit($node, 'nobody.wants', '{}');
	wait_rotation('events');
}
entries_read();
cmp_ok(ask($lookups) - $looked_up, '<', 3000, 'and not looked up again when further pieces are emptied');
$node->append_conf('postgresql.conf', "outbox.retention = 1h\n");
$node->reload;

# Commands, while a snapshot keeps those that were carried out: 3,000 are six
# batches, of which each begins where the one before ended, and one look more.
my $commands = "SELECT idx_tup_read FROM pg_stat_all_indexes WHERE indexrelname = 'commands_pkey'";
my $carried_out = ask($commands);
$holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
is(ask("SELECT outbox.discard('dead')"), 3000, 'a command for each dead letter');
ok(wait_sql($node, "SELECT dead = 0 FROM outbox.stats WHERE endpoint = 'dead'"), 'they are carried out');
entries_read();
cmp_ok(ask($commands) - $carried_out, '<', 3000 * 4.5, 'none is read again in each batch');
$holder->query_safe('COMMIT');
$holder->quit;

# Others are dropped
endpoint($node, $receiver, "other$_", '/ok/other', "topics => '{other.*}'") foreach 1 .. 20;
$receiver->wait_delivered(20, id => emit($node, 'other.one', '{}'));
$last = entries_read();
foreach (1 .. 20)
{
	ask("SELECT outbox.drop_endpoint('other$_')");
	ok(wait_sql($node, "SELECT count(*) = 1 + 20 - $_ FROM outbox.endpoint_secrets"),
		'what a dropped endpoint leaves is removed');
}
cmp_ok(entries_read() - $last, '<', 10 * 3000, 'and nothing else looked at');

# One endpoint is behind, in the middle of a piece that could be emptied otherwise.
# What many endpoints have to store at one time is stored in parts, so that answers and new
# events need not wait for all of it.
ask("SELECT count(outbox.create_endpoint('part' || n, 'http://127.0.0.1:1/', topics => '{part}', backoff_base => '10 min', backoff_max => '10 min')) FROM generate_series(1, 60) n");
ask("SELECT count(outbox.emit('part', '{}'::jsonb, key => 'k')) FROM generate_series(1, 50)");
ok(wait_sql($node, q{SELECT count(*) = 60 * 49 FROM outbox.deliveries WHERE endpoint LIKE 'part%' AND status = 'blocked'}), 'events wait behind the first one of each');
my $in_one = ask(q{SELECT max(n) FROM (SELECT count(*) AS n FROM outbox.parked p JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name LIKE 'part%' GROUP BY p.xmin::text) AS transactions});
cmp_ok($in_one, '<=', 250 + 49, 'few rows are written by one transaction');    # the last endpoint is stored whole

# What it has read there is not read again each time the rotation asks whether it is done.
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints");
$node->append_conf('postgresql.conf', "outbox.attempts_retention = 2s\n");
endpoint($node, $receiver, 'laggard', '/slow/laggard?ms=20', "topics => '{lag.*}', max_in_flight => 32");
ask("SELECT outbox.pause_endpoint('laggard')");
ask("SELECT count(outbox.emit('lag.n', '{}'::jsonb)) FROM generate_series(1, 12000)");
ask("SELECT outbox.resume_endpoint('laggard')");
$receiver->wait_delivered(4000, path => '/slow/laggard');
$receiver->control(path => '/slow/laggard', behave => '/hang');
$node->append_conf('postgresql.conf', "outbox.retention = 2s\n");
$node->reload;
ok(wait_sql($node, "SELECT (p.piece + 1) % 3 = e.piece FROM outbox.pieces p, outbox.events e"
		  . " WHERE p.log = 'events' AND e.topic = 'lag.n' LIMIT 1"), 'its piece is next');
my $events = "SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE indexrelname ~ '^events_[0-2]_xid_seq_idx\$'";
entries_read();
my $read = ask($events);
for (1 .. 4)
{
	wait_rotation('attempts');
}
entries_read();
cmp_ok(ask($events) - $read, '<', 12000, 'what the laggard has read is not walked at each look');

# Commands for thousands of endpoints at once are found one by one.
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints");
ask("SELECT outbox.create_endpoint('many' || n, 'http://127.0.0.1:1/', '{many.*}') FROM generate_series(1, 3000) n");
my $index_pages = "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_all_indexes WHERE indexrelname = 'commands_delivery_idx'";
entries_read();
$read = ask($index_pages);
ask('SELECT outbox.probe(endpoint_id) FROM outbox.endpoint_settings; SELECT outbox.wake_workers()');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.commands'), 'each endpoint was probed');
entries_read();
cmp_ok(ask($index_pages) - $read, '<', 8 * 3000, 'no command is looked for among those of other endpoints');

$node->stop;
done_testing();
