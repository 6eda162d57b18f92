# An endpoint that exceeds outbox.max_backlog_size loses its oldest events as dead letters only.
# They are kept, a notice tells of them, and no other endpoint is affected.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $limit = 3 * 1024 * 1024;

sub set
{
	my ($value) = @_;
	ask("ALTER SYSTEM SET outbox.max_backlog_size = '$value'");
	$node->reload;
	return;
}

is(ask("SELECT setting || unit FROM pg_settings WHERE name = 'outbox.max_backlog_size'"), '-1MB', 'no limit at first');
my (undef, undef, $err) = $node->psql('postgres', 'ALTER SYSTEM SET outbox.max_backlog_size = 0');
like($err, qr/invalid value.*HINT/s, 'no backlog at all is no limit');

endpoint($node, $receiver, 'fast', '/ok/fast', "topics => '{load.*}'");
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{other.*}'");
endpoint($node, $receiver, 'stopped', '/ok/stopped', "topics => '{load.*,first.*}', on_exhausted => 'block'");
endpoint($node, $receiver, 'waiting', '/ok/waiting', "topics => '{load.*}', ordering => 'strict'");
endpoint($node, $receiver, 'told', '/ok/told', "topics => '{outbox.dead}'");

# One is on its way when the endpoint is paused, and one of its key waits behind it
$receiver->control(path => '/ok/stopped', behave => '/status/429?retry_after=3600');
my @first = map { emit($node, 'first.n', "{\"n\": $_}", "key => 'k'") } 1 .. 2;
wait_status($node, $first[0], 'retrying', 'an endpoint slows down');
ask("SELECT outbox.pause_endpoint('$_')") foreach qw(stopped other waiting told);
my $cancelled = emit($node, 'load.cancelled', '{}');
is(ask("SELECT outbox.cancel('$cancelled', 'stopped')"), 't', 'one is cancelled');

# Emits events of about 2 kB, and returns their ids.
sub load
{
	my ($topic, $from, $to) = @_;
	return split /\n/, ask(<<SQL);
SELECT outbox.emit('$topic', jsonb_build_object('n', n, 'filler',
	(SELECT string_agg(md5(n || '.' || i), '') FROM generate_series(1, 50) i)), key => 'k' || n % 7)
FROM generate_series($from, $to) n
SQL
}

my @ids;
foreach my $from (1, 2501)
{
	# each in a piece of its own
	my $piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'events'");
	push @ids, load('load.n', $from, $from + 2499);
	next if $from > 1;
	ask("ALTER SYSTEM SET outbox.retention = '2 s'");
	$node->reload;
	ok(wait_sql($node, "SELECT piece <> $piece FROM outbox.pieces WHERE log = 'events'"), 'a piece is full');
}
$receiver->wait_delivered(5001, path => '/ok/fast');
my $other = emit($node, 'other.one', '{}');
ok(wait_sql($node, "SELECT retained_bytes > 2 * $limit FROM outbox.stats WHERE endpoint = 'stopped'"),
	'without a limit a paused endpoint retains everything');
is(ask("SELECT count(*) FROM outbox.dead_letters"), '0', 'and loses nothing');

my $bytes = ask('SELECT log_bytes FROM outbox.status');
my $offset = -s $node->logfile;
set('3MB');
foreach my $name (qw(stopped waiting))
{
	ok(wait_sql($node, "SELECT retained_bytes <= $limit * 1.05 FROM outbox.stats WHERE endpoint = '$name'"),
		"$name: retains as much as it may");
	$node->wait_for_log(qr/endpoint "$name" retained more than outbox.max_backlog_size: \d+ deliveries are dead/, $offset);
}
ok(wait_sql($node, "SELECT min(dead) > 0 FROM outbox.stats WHERE endpoint IN ('stopped', 'waiting')"), 'stats say so');
is(ask("SELECT last_error FROM outbox.stats WHERE endpoint = 'stopped'"),
	'the backlog was larger than outbox.max_backlog_size', 'and why');
is(ask("SELECT string_agg(DISTINCT reason, ',') FROM outbox.dead_letters"), 'backlog', 'the reason');
is(ask("SELECT sum(dead) FROM outbox.stats WHERE endpoint IN ('fast', 'other')"), '0',
	'an endpoint that has read it, or retains nothing of it, loses nothing');
my $dead = "(SELECT count(*) FROM outbox.dead_letters WHERE endpoint = 'stopped')";    # grows while the log does
ok( wait_sql($node, "SELECT sum((payload->>'count')::int) = $dead FROM outbox.events"
		  . " WHERE topic = 'outbox.dead' AND payload->>'endpoint' = 'stopped'"),
	'outbox.dead tells of each');
cmp_ok(ask("SELECT count(*) FROM outbox.events WHERE topic = 'outbox.dead'"), '<', ask("SELECT $dead") / 10, 'of many at a time');
ask("SELECT outbox.resume_endpoint('told')");

# The oldest ones are dead, in a row.  Each event is dead or still waits.
is( ask("SELECT bool_and(n <= $dead) FROM (SELECT (payload->>'n')::int AS n FROM outbox.dead_letters"
		  . " WHERE endpoint = 'stopped' AND topic = 'load.n') d"),
	't', 'the oldest ones');
is( ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'stopped' AND topic = 'load.n'"
		  . " AND status IN ('dead', 'pending', 'retrying', 'blocked')"),
	'5000', 'each is dead, or waits');
is(ask("SELECT status FROM outbox.deliveries WHERE event_id = '$cancelled' AND endpoint = 'stopped'"),
	'cancelled', 'what was cancelled stays so');

# Pieces can go, and the dead letters stay
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.events WHERE id = '$ids[0]'"), 'the piece is dropped');
ok(wait_sql($node, "SELECT log_bytes < $bytes FROM outbox.status"), 'the log is smaller');
is(ask("SELECT length(payload->>'filler') FROM outbox.dead_letters WHERE endpoint = 'stopped' AND event_id = '$ids[0]'"),
	'1600', 'a dead letter has its payload');

# A restart does not bring them back
my $before = ask("SELECT $dead");
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
ok(wait_sql($node, "SELECT dead = $before FROM outbox.stats WHERE endpoint = 'stopped'"), 'as many after a restart');

# Resumed: the rest comes, and the dead ones after retry()
set('-1');
$receiver->control(path => '/ok/stopped', behave => '/ok');
ask("SELECT outbox.resume_endpoint('$_')") foreach qw(stopped waiting other);
ask("SELECT outbox.retry('stopped', '$first[0]')");
$receiver->wait_delivered(1, id => $other);
my $live = 5000 - ask("SELECT count(*) FROM outbox.dead_letters WHERE endpoint = 'stopped' AND topic = 'load.n'");
$receiver->wait_delivered($live, path => '/ok/stopped', topic => 'load.n');
ask("SELECT outbox.retry('stopped'), outbox.retry('waiting')");
ok( wait_until {
		my %got = map { $_->{id} => 1 } $receiver->delivered(path => '/ok/stopped');
		my %waiting = map { $_->{id} => 1 } $receiver->delivered(path => '/ok/waiting');
		!grep { !$got{$_} } @ids, @first and !grep { !$waiting{$_} } @ids;
	}
	'retried: nothing is lost', 90);
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->requests(path => '/ok/stopped', id => $cancelled)), 0, 'but what was cancelled');

# --- Numbers that no event has do not count: any role may draw some

ok(wait_sql($node, "SELECT log_bytes < $limit / 3 FROM outbox.status"), 'the log is nearly empty');
ask("ALTER SYSTEM SET outbox.retention = '1 h'");
$node->reload;
endpoint($node, $receiver, 'burned', '/ok/burned', "topics => '{burned}'");
ask("SELECT outbox.pause_endpoint('burned')");

sub burn
{
	return ask('SELECT count(outbox.next_seq()) FROM generate_series(1, 50000)');
}

# How many are dead, how many have no row as they wait in the log, and whether the dead ones are the oldest
my $counts = "SELECT count(k.seq) AS dead, count(*) - count(k.seq) AS pending, count(*) AS n,"
  . " bool_and(k.status = 'dead') AND max(k.seq) < min(e.seq) FILTER (WHERE k.seq IS NULL) AS oldest"
  . " FROM outbox.events e LEFT JOIN outbox.parked k ON k.seq = e.seq AND k.event_id = e.id WHERE e.topic = 'burned'";
# 3 MB are about 1,400 of them, and a page that makes some dead has up to 500
my $fits = 'pending BETWEEN 700 AND 1600 AND oldest';

emit($node, 'burned', '{"n": 0}');
burn();
load('burned', 1, 3000);
set('3MB');
ok(wait_sql($node, "SELECT $fits FROM ($counts) c"), 'drawn behind the oldest event: the oldest ones are dead, and no more') or diag(ask($counts));
my $were = ask("SELECT dead FROM ($counts) c");
burn();
load('burned', 3001, 4000);
ok(wait_sql($node, "SELECT dead > $were FROM ($counts) c"), 'the log has grown') or diag(ask($counts));
ok(wait_sql($node, "SELECT $fits FROM ($counts) c"), 'drawn before the newest ones: the same') or diag(ask($counts));
burn() foreach 1 .. 3;
load('burned', 4001, 4001);
ok(wait_sql($node, "SELECT n = 4002 AND $fits FROM ($counts) c"), 'drawn in the end: the same') or diag(ask($counts));
is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');

$node->stop;
done_testing();
