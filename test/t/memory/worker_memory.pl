# The events, bodies and answers of a worker never take more than outbox.worker_memory.
# That holds for payloads in flight, in lanes and in retries, after a restart, in
# batches, and for the subscribers of topics.  Afterwards the memory goes back to the
# system, and meanwhile no endpoint starves.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'a memory checker needs memory of its own' if $ENV{OUTBOX_MEMORY_CHECKER};

my $LIMIT = 64;		# MB
my $MORE = 24;		# MB: one event that is being read, and what is no event
my $node = outbox_node('main', conf => <<"CONF");
outbox.max_payload_size = '64 MB'
outbox.worker_memory = '$LIMIT MB'
CONF
my $receiver = OutboxTest::Receiver->new('main', brief => 1);
my $used_up = 'outbox.worker_memory is used up';

# The memory of the worker in MB, or 0 while none is there.
sub rss
{
	return eval { private_memory(worker_pid($node)) } // 0;
}

# What it had at most until the condition held.
sub most_until
{
	my ($condition, $what) = @_;
	my $most = 0;
	my $asked = 0;

	wait_until
	{
		my $now = rss();
		$most = $now if $now > $most;
		return 0 if time - $asked < 0.3;
		$asked = time;
		return $condition->();
	}
	$what, 60;			# there is much to be sent, however impatient the others are
	return $most;
}

sub emit_large
{
	my ($topic, $n, $bytes, $key) = @_;
	$key //= 'NULL';
	return ask("SELECT count(outbox.emit('$topic', jsonb_build_object('n', n, 'x', repeat('x', $bytes)),"
		  . " key => $key)) FROM generate_series(1, $n) n");
}

sub delivered
{
	my ($n, $endpoint) = @_;
	return ask("SELECT delivered >= $n FROM outbox.stats WHERE endpoint = '$endpoint'") eq 't';
}

sub memory
{
	return ask('SELECT coalesce(sum(memory), 0) FROM outbox.workers') / 1024 / 1024;
}

sub drop_all
{
	ask('SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints');
	return;
}

# How much it has with connections and caches, and nothing to do
endpoint($node, $receiver, 'warm', '/ok/warm', "topics => '{warm.*}', max_in_flight => 100");
emit_large('warm.n', 500, 10);
ok(wait_sql($node, q{SELECT delivered = 500 FROM outbox.stats WHERE endpoint = 'warm'}), 'warm');
drop_all();
my $idle = rss();
note("idle: $idle MB");
my $bound = $idle + $LIMIT + $MORE;

sub goes_back
{
	my ($what) = @_;
	my $now;

	wait_until { ($now = rss()) < $idle + 20 } "$what: it goes back to the system";
	note("$what: afterwards $now MB");
	return cmp_ok($now, '<', $idle + 20, "$what: it goes back to the system");
}

# --- Many requests of 1 MB, all of them held by the receiver

endpoint($node, $receiver, 'large', '/hold/large', "topics => '{large.*}', max_in_flight => 384, timeout => '10 min'");
endpoint($node, $receiver, 'small', '/ok/small', "topics => '{small.*}'");
emit_large('large.n', 400, 1_000_000);
my $most = most_until(sub { ask("SELECT reason FROM outbox.stats WHERE endpoint = 'large'") eq $used_up },
	'the view says what holds it back');
is(ask("SELECT state || ', ' || reason FROM outbox.stats WHERE endpoint = 'large'"), "active, $used_up", 'the view says what holds it back');
my $processing = ask("SELECT processing FROM outbox.stats WHERE endpoint = 'large'");
cmp_ok($processing, '>=', $LIMIT / 4, "$processing are in flight");
cmp_ok($processing, '<=', $LIMIT, 'and no more than there is memory for');

# Another endpoint is served as usual
my $start = time;
emit_large('small.n', 1000, 10);
ok(wait_sql($node, q{SELECT delivered = 1000 FROM outbox.stats WHERE endpoint = 'small'}), 'another endpoint gets its events');
cmp_ok(time - $start, '<', 20, 'soon');
cmp_ok(memory(), '<=', $LIMIT, 'what is counted stays within the bound');
$receiver->control(path => '/hold/large', behave => '/slow?ms=20');
my $then = most_until(sub { delivered(400, 'large') }, 'all are delivered');
$most = $then if $then > $most;
cmp_ok($most, '<', $bound, "so does the process: $most MB");
ok(wait_sql($node, "SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'large' AND status <> 'delivered'", 0), 'all are delivered');
goes_back('requests of 1 MB');
ok(wait_sql($node, q{SELECT reason IS NULL FROM outbox.stats WHERE endpoint = 'large'}), 'the view shows no reason any more');
cmp_ok(memory(), '<', 4, 'and nothing is left in the count');

# --- All of them fail, and come back from outbox.parked.  Keys wait in lanes.  The
# --- worker starts over in the middle

ask("SELECT outbox.alter_endpoint('large', backoff_base => '100 ms', backoff_max => '200 ms')");
$receiver->control(path => '/hold/large', behave => '/fail?rate=0.3&ms=20');
emit_large('large.n', 200, 1_000_000, "'k' || n % 40");
$most = most_until(sub { delivered(450, 'large') }, 'some got through');
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
$then = most_until(sub { delivered(600, 'large') }, 'failures, lanes and a restart');
$most = $then if $then > $most;
cmp_ok($most, '<', $bound, "failures, lanes and a restart: $most MB");
$idle = rss();
drop_all();

# --- Payloads that only one at a time has room for

endpoint($node, $receiver, 'huge', '/hold/huge', "topics => '{huge.*}', timeout => '10 min'");
endpoint($node, $receiver, 'small', '/ok/small', "topics => '{small.*}'");
emit_large('huge.n', 4, 40_000_000);
$most = most_until(sub { ask("SELECT reason FROM outbox.stats WHERE endpoint = 'huge'") eq $used_up },
	'huge payloads: the view says what holds them back');
is(ask("SELECT processing FROM outbox.stats WHERE endpoint = 'huge'"), '1', 'one huge payload is in flight');
emit_large('small.n', 200, 10);
ok(wait_sql($node, q{SELECT delivered = 200 FROM outbox.stats WHERE endpoint = 'small'}), 'beside it an endpoint gets its events');
$receiver->control(path => '/hold/huge', behave => '/slow?ms=20');
$then = most_until(sub { delivered(4, 'huge') }, 'huge payloads are delivered');
$most = $then if $then > $most;

# The jsonb, a copy of the string in it, and the text
cmp_ok($most, '<', $idle + 3 * 40 + $MORE, "huge payloads: $most MB");
goes_back('huge payloads');
drop_all();

# --- One request of each endpoint is together above the bound: one of them is sent

foreach my $e (1 .. 3)
{
	endpoint($node, $receiver, "over$e", "/hold/over$e", "topics => '{over$e.*}', timeout => '10 min'");
	emit_large("over$e.n", 2, 40_000_000);
}
ok( wait_sql($node, "SELECT sum(processing) = 1 AND count(*) FILTER (WHERE reason = '$used_up') >= 2 FROM outbox.stats WHERE endpoint LIKE 'over%'"),
	'one request goes without room, and the view says what holds the others back');
$receiver->control(path => "/hold/over$_", behave => '/slow?ms=20') foreach 1 .. 3;
$most = 0;
foreach my $e (1 .. 3)
{
	$then = most_until(sub { delivered(2, "over$e") }, "over$e: delivered");
	$most = $then if $then > $most;
}
cmp_ok($most, '<', $idle + 3 * 40 + $MORE, "one after the other: $most MB");
drop_all();
goes_back('one after the other');

# --- Batches: bodies, and room for their answers

endpoint($node, $receiver, 'batch', '/hold/batch',
	"topics => '{batch.*}', batch_size => 100, max_in_flight => 200, timeout => '10 min'");
emit_large('batch.n', 300, 400_000);
$most = most_until(sub { ask("SELECT reason FROM outbox.stats WHERE endpoint = 'batch'") eq $used_up },
	'batches: the view says what holds them back');
cmp_ok(memory(), '<=', $LIMIT, 'batches are counted');
$receiver->control(path => '/hold/batch', behave => '/ok');
$then = most_until(sub { delivered(300, 'batch') }, 'batches are delivered');
$most = $then if $then > $most;
cmp_ok($most, '<', $bound, "batches: $most MB");
drop_all();
goes_back('batches');

# --- Which endpoint subscribes to which topic: 1,000 endpoints and as many topics as would
# --- take more than everything else

ask(<<'SQL');
SELECT outbox.create_endpoint('sub' || n, 'http://127.0.0.1:1/' || n, topics => '{*}', secret => NULL) FROM generate_series(1, 1000) n;
SELECT outbox.pause_endpoint(name) FROM outbox.endpoints;
SQL
ok(wait_sql($node, 'SELECT sum(endpoints) = 1000 FROM outbox.workers'), 'a thousand endpoints');
my $with_endpoints = rss();
ask("SELECT count(outbox.emit('t' || n, '{}'::jsonb)) FROM generate_series(1, 6000) n");
$most = most_until(sub { ask("SELECT min(pending) FROM outbox.stats") eq '6000' }, 'all of them are counted');
cmp_ok($most, '<', $with_endpoints + 20, "topics: $most MB, $with_endpoints before");

is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');
$node->stop;
done_testing();
