# An endpoint is disabled when it has had nothing but failures for disable_after, and not before.
# A success, a resume, a day of silence and a step of the clock do not count as failing;
# a restart of the server and probes do.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $why = 'failed for disable_after';
my $dir = PostgreSQL::Test::Utils::tempdir('clock');
my $shim = shim('clock');
my $clock = "$dir/offset";
my $offset = 0;

sub set_clock
{
	my ($by) = @_;
	$offset += $by;
	write_clock($clock, $offset);
	return;
}

set_clock(0);
$ENV{OUTBOX_CLOCK} = $clock;
$ENV{LD_PRELOAD} = $shim;
my $node = outbox_node('main', conf => "outbox.wakeup_interval = '100 ms'\n");
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('main');

# The receiver is not told the secrets: it would find the signatures too old.
sub create
{
	my ($name, $more) = @_;
	ask("SELECT outbox.create_endpoint('$name', '" . $receiver->url("/ok/$name")
		  . "', topics => '{$name.*}', backoff_base => '50 ms', backoff_max => '150 ms', $more)");
	return;
}

sub fails
{
	my ($name) = @_;
	$receiver->control(path => "/ok/$name", behave => '/status/500');
	return;
}

sub answers
{
	my ($name) = @_;
	$receiver->control(path => "/ok/$name", behave => '/ok');
	return;
}

sub is_disabled
{
	my ($name, $what) = @_;
	ok(wait_sql($node, "SELECT state = 'disabled' AND reason = '$why' FROM outbox.endpoints WHERE name = '$name'"),
		"$what: it is disabled");
	return;
}

# So many further attempts have failed, and the endpoint is not disabled.
sub fails_on
{
	my ($name, $what) = @_;
	my $before = ask("SELECT count(*) FROM outbox.attempts WHERE endpoint = '$name'");
	ok(wait_sql($node, "SELECT count(*) > $before + 5 FROM outbox.attempts WHERE endpoint = '$name'"), "$what: it fails on");
	return is(ask("SELECT state FROM outbox.endpoints WHERE name = '$name'"), 'active', "$what: it is not disabled");
}

# How many attempts were begun although all had failed for so long
sub too_late
{
	my ($name, $after) = @_;
	return ask("SELECT count(*) FROM outbox.attempts a JOIN outbox.endpoints e ON e.name = a.endpoint WHERE e.name = '$name'"
		  . " AND a.started_at > (SELECT min(started_at + make_interval(secs => duration_ms / 1000)) FROM outbox.attempts WHERE endpoint = e.name)"
		  . " + interval '$after' AND a.started_at <= e.state_since");
}

# The endpoint has failed since this time, by its attempts and by its position.
my $first = "(SELECT min(started_at) FROM outbox.attempts WHERE endpoint = e.name)";

is(ask("SELECT outbox.create_endpoint('default', '" . $receiver->url('/ok/default') . "', topics => '{none}')"), '', 'created');
my $shown = "SELECT COALESCE(disable_after::text, 'never') FROM outbox.endpoints WHERE name = 'default'";
is(ask($shown), '5 days', 'the default is 5 days');
ask("SELECT outbox.alter_endpoint('default', disable_after => '0')");
is(ask($shown), 'never', '0 means never');
ask("SELECT outbox.alter_endpoint('default', reset => '{disable_after}')");
is(ask($shown), '5 days', 'reset brings the default back');

endpoint($node, $receiver, 'watch', '/ok/watch', "topics => '{outbox.*}', disable_after => NULL");
create('never', 'disable_after => NULL');
create('edge', "disable_after => '3 s', tenant => 'acme'");
create('mixed', "disable_after => NULL, ordering => 'none'");
create('probed', "disable_after => '12 s'");
fails($_) foreach qw(never edge mixed probed);
ask("SELECT outbox.emit('$_.x', '{}', tenant => 'acme') FROM generate_series(1, 2)") foreach qw(never edge mixed);
ask("SELECT count(outbox.emit('probed.x', '{}')) FROM generate_series(1, 30)");

# A success begins the time anew.
ok(wait_sql($node, "SELECT clock_timestamp() > $first + '1500 ms' FROM (VALUES ('mixed')) e (name)"), 'it fails for a while');
answers('mixed');
ok(wait_sql($node, "SELECT count(*) = 2 FROM outbox.attempts WHERE endpoint = 'mixed' AND error IS NULL"), 'then it answers');
my $succeeded = ask("SELECT max(started_at) FROM outbox.attempts WHERE endpoint = 'mixed' AND error IS NULL");
fails('mixed');
ask("SELECT outbox.alter_endpoint('mixed', disable_after => '9 s')");
ask("SELECT outbox.emit('mixed.x', '{}')");

# A restart does not begin it anew.
ok(wait_sql($node, "SELECT state = 'backing_off' FROM outbox.stats WHERE endpoint = 'probed'"), 'one backs off');
ok(wait_sql($node, "SELECT clock_timestamp() > $first + '2 s' FROM (VALUES ('probed')) e (name)"), 'for a while');
$ENV{LD_PRELOAD} = $shim;
$node->restart;
delete $ENV{LD_PRELOAD};

is_disabled('edge', 'nothing but failures');
is(ask("SELECT state_since - $first >= '3 s' FROM outbox.endpoints e WHERE name = 'edge'"), 't', 'after that time and not before');
cmp_ok(too_late('edge', '3 s'), '<=', 2, 'nor later');
is(ask("SELECT count(*) FROM outbox.attempts a JOIN outbox.endpoints e ON e.name = a.endpoint WHERE name = 'edge'"
		  . " AND started_at > state_since"), 0, 'nothing is sent after it');
is_disabled('mixed', 'a success between');
is(ask("SELECT state_since >= '$succeeded'::timestamptz + '9 s' FROM outbox.endpoints WHERE name = 'mixed'"), 't',
	'the time begins anew with a success');
is_disabled('probed', 'probes over a restart');
is(ask("SELECT state_since - $first >= '12 s' FROM outbox.endpoints e WHERE name = 'probed'"), 't', 'after its time');
cmp_ok(too_late('probed', '12 s'), '<=', 2, 'the time goes on over a restart');
fails_on('never', 'NULL');

# It is told, and the events are kept
my @told = grep { $_->{headers}{'outbox-topic'} eq 'outbox.disabled' && decode_json($_->{body})->{data}{endpoint} eq 'edge' }
  $receiver->wait_delivered(3, path => '/ok/watch');
is(scalar(@told), 1, 'it is told once');
is(decode_json($told[0]{body})->{data}{reason}, $why, 'with the reason');
is(decode_json($told[0]{body})->{data}{tenant}, 'acme', 'and the tenant');
ask("SELECT outbox.emit('edge.later', '{}', tenant => 'acme')");
ok(wait_sql($node, "SELECT pending + retrying = 3 AND dead = 0 AND state = 'disabled' AND reason = '$why' FROM outbox.stats"
	  . " WHERE endpoint = 'edge'"), 'its events are kept');

# Resumed, its time begins anew, also when nothing has succeeded
ask("SELECT outbox.resume_endpoint('edge')");
my $resumed = ask("SELECT state_since FROM outbox.endpoints WHERE name = 'edge'");
is_disabled('edge', 'resumed too early');
is(ask("SELECT state_since >= '$resumed'::timestamptz + '3 s' FROM outbox.endpoints WHERE name = 'edge'"), 't', 'which counts anew');
answers('edge');
ask("SELECT outbox.resume_endpoint('edge')");
ok(wait_sql($node, "SELECT delivered = 3 AND state = 'active' FROM outbox.stats WHERE endpoint = 'edge'"),
	'resumed, it gets what was kept');

# Changed while it fails
ask("SELECT outbox.alter_endpoint('never', disable_after => '1 day')");
fails_on('never', 'a longer time');
ask("SELECT outbox.alter_endpoint('never', disable_after => '1 s')");
is_disabled('never', 'a shorter time');

# The clock is set, while the worker runs and while it does not
create('clock', "disable_after => '1 h'");
fails('clock');
emit($node, 'clock.x', '{}');
fails_on('clock', 'one');
set_clock(7200);
fails_on('clock', 'set forward by 2 hours');
set_clock(-10800);
fails_on('clock', 'set back by 3 hours');
set_clock(3600);
fails_on('clock', 'and forth again');

# It is set while a request is on its way, whose end is then what wakes the worker.  A request takes as long as the worker
# sleeps, so that happens in every other round.
ask("ALTER SYSTEM SET outbox.wakeup_interval = '60 s'");
ask('SELECT pg_reload_conf()');
ask("SELECT outbox.pause_endpoint(name) FROM outbox.endpoints WHERE name <> 'clock'");
ask("SELECT outbox.alter_endpoint('clock', timeout => '100 ms', backoff_base => '1 ms', backoff_max => '1 ms')");
$receiver->control(path => '/ok/clock', behave => '/hang');
foreach my $round (1 .. 10)
{
	set_clock(7200);
	last unless fails_on('clock', "set forward during request $round");
}
fails('clock');
ask("SELECT outbox.alter_endpoint('clock', backoff_base => '50 ms', backoff_max => '150 ms')");
ask('ALTER SYSTEM RESET outbox.wakeup_interval');
ask('SELECT pg_reload_conf()');

sub start_later
{
	my ($by) = @_;
	$node->stop;
	set_clock($by);
	$ENV{LD_PRELOAD} = $shim;
	$node->start;
	delete $ENV{LD_PRELOAD};
	ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running');
	return;
}
start_later(90000);
fails_on('clock', 'a day and an hour without an attempt');
start_later(7200);
is_disabled('clock', 'two hours without a server');

$node->stop;
done_testing();
