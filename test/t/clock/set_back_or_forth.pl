# When the clock is set back or forth, no event is lost, and none waits longer than it should.
# It is set by an hour, under load.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir('clock');
my $shim = shim('clock');
my $clock = "$dir/offset";
my $log = "$dir/producer";
my $offset = 0;

sub set_clock
{
	($offset) = @_;
	write_clock($clock, $offset);
	return;
}

set_clock(0);
$ENV{OUTBOX_CLOCK} = $clock;
$ENV{LD_PRELOAD} = $shim;
my $node = outbox_node('main', conf => "outbox.workers_per_database = 4\n");
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('main');

# The receiver is not told the secrets: it would find the signatures too old, as
# it should.  A retry is due some seconds after each failure, as the jitter wills.
my $url = $receiver->url('');
ask(<<"SQL");
SELECT outbox.create_endpoint('ok', '$url/ok/a', '{load.*}');
SELECT outbox.create_endpoint('fails', '$url/fail/b?rate=0.1', '{load.*}', backoff_base => '20 ms', backoff_max => '200 ms');
SELECT outbox.create_endpoint('waits', '$url/ok/waits', '{waits.*}', backoff_base => '4 s', backoff_max => '1 h');
SELECT outbox.create_endpoint('far', '$url/status/500/far', '{far.*}', backoff_base => '20 h', backoff_max => '20 h');
SELECT outbox.create_endpoint('down', '$url/ok/down', '{down.*}', backoff_base => '4 s', backoff_max => '5 s');
SQL
my $far = emit($node, 'far.n', '{}');
wait_status($node, $far, 'retrying', 'a retry is due in hours');
ask("UPDATE outbox.parked SET next_attempt_at = clock_timestamp() + interval '10 h'");
sub rest { return ask("SELECT extract(epoch FROM next_attempt_at - clock_timestamp())::bigint FROM outbox.deliveries WHERE event_id = '$far'") }
my $producer = start_producer($node, $log, rate => 100, keys => 4);
$receiver->wait_new(20, '/ok/a');

my $started = ask('SELECT extract(epoch FROM clock_timestamp())::bigint');
set_clock(-7200);
cmp_ok(ask('SELECT extract(epoch FROM clock_timestamp())::bigint'), '<', $started - 7000,
	'the clock can be set');
set_clock(0);
ask('SELECT pg_terminate_backend(pid) FROM outbox.workers');
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running');

# Everything that has a time of its own is under way when the clock is set.
sub step
{
	my ($by, $name) = @_;
	my $n = abs($by) . ($by < 0 ? 'back' : 'on') . time;

	$receiver->control(path => '/ok/waits', behave => '/status/500');
	my $retry = emit($node, 'waits.n', '{}');
	wait_status($node, $retry, 'retrying', "$name: a delivery waits for its retry");
	my $before = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'ok'");
	my $rest = rest() - ($by > 0 ? $by : 0);
	set_clock($offset + $by);
	$receiver->control(path => '/ok/waits', behave => '/ok');
	ok($receiver->wait_new(200, '/ok/a'), "$name: deliveries go on");
	$receiver->wait_delivered(1, id => $retry, path => '/ok/waits');
	pass("$name: the retry is made");
	wait_status($node, $retry, 'delivered', "$name: and settled");
	ok( wait_sql($node, "SELECT delivered > $before + 100 FROM outbox.stats WHERE endpoint = 'ok'"),
		"$name: so is the rest, and shown");

	# An event that is scheduled by the new clock comes by the new clock.
	my $later = ask("SELECT outbox.emit('waits.later', '{}'::jsonb, deliver_at => clock_timestamp() + interval '1 s')");
	$receiver->wait_delivered(1, id => $later);
	pass("$name: a scheduled event comes");
	ok( wait_sql($node, "SELECT bool_and(state = 'running' AND last_loop_at > clock_timestamp() - interval '5 s')"
			  . ' FROM outbox.workers'),
		"$name: the worker runs");
	cmp_ok(abs($rest - rest()), '<', 300, "$name: what is due in hours keeps the rest of its wait");
	return;
}

step(-3600, 'back by an hour');
step(7200, 'forward by two hours');
step(-3600, 'back again');
step(-30, 'back by half a minute');

# The server was down when the clock was set back: by how much is unknown.
# No retry waits longer than it ever could.
$receiver->control(path => '/ok/down', behave => '/status/500');
my $down = emit($node, 'down.n', '{}');
wait_status($node, $down, 'retrying', 'down: a delivery waits for its retry');
$node->stop;
set_clock($offset - 3600);
$receiver->control(path => '/ok/down', behave => '/ok');
$ENV{LD_PRELOAD} = $shim;
$node->start;
delete $ENV{LD_PRELOAD};
$receiver->wait_delivered(1, id => $down);
pass('down: the retry is made within backoff_max');

# A place in the log by its time: where the clock was set back times come twice,
# and what was emitted at the first of them must not be missed, whether a tick was
# taken then or not.
ask("SELECT outbox.drop_endpoint('waits', discard => true)");
my $here = $offset;
my $time = ask('SELECT clock_timestamp()');
my $first = emit($node, 'place.n', '{}');
set_clock($here - 1800);
ok(wait_sql($node, "SELECT taken_at < '$time'::timestamptz - interval '1000 s' FROM outbox.ticks ORDER BY tick DESC LIMIT 1"),
	'the log goes on after the clock was set back');
set_clock($here + 60);
endpoint($node, $receiver, 'place', '/ok/place', "topics => '{place.*}', start_at => '$time'");
$receiver->wait_delivered(1, id => $first, path => '/ok/place');
pass('an event that was emitted before the clock was set back is not passed over');

stop_producer($producer);
ask("SELECT outbox.drop_endpoint('far', discard => true)");
check_history($node, $receiver, $log, endpoints => [ '/ok/a', '/fail/b' ],
	max_duplicates => 6 * 2 * (32 + 100),
	name => 'nothing lost, and the order kept');
$node->stop;
done_testing();
