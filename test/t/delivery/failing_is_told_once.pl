# An endpoint that only fails is told of once, and stays backing off over a restart.
# The event outbox.failing comes when outbox.failing_after is over, also where no probe is
# due then, and again only after a success.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.failing_after = '4 s'\noutbox.wakeup_interval = '100 ms'\n");
my $receiver = OutboxTest::Receiver->new('main');

sub failing
{
	return grep { $_->{headers}{'outbox-topic'} eq 'outbox.failing' } $receiver->delivered(path => '/ok/watch');
}

endpoint($node, $receiver, 'watch', '/ok/watch', "topics => '{outbox.*}'");
endpoint($node, $receiver, 'down', '/status/500/down', "topics => '{a.*}', tenant => 'acme', ordering => 'none', max_in_flight => 1, backoff_base => '1 min', backoff_max => '1 h'");
endpoint($node, $receiver, 'mixed', '/ok/mixed', "topics => '{a.*}'");
my $since = ask("SELECT created_at FROM outbox.endpoints WHERE name = 'down'");
ask("SELECT count(outbox.emit('a.x', '{}', tenant => 'acme')) FROM generate_series(1, 30)");
ok(wait_sql($node, "SELECT state = 'backing_off' AND state_since > '$since' FROM outbox.stats WHERE endpoint = 'down'"), 'it backs off');
$since = ask("SELECT state_since FROM outbox.stats WHERE endpoint = 'down'");

# The state survives a restart, and so does the time since which it fails
sub restarted
{
	my ($mode) = @_;
	$node->stop($mode);
	$node->start;
	ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running');
	ok(wait_sql($node, "SELECT state = 'backing_off' AND reason IS NOT NULL FROM outbox.stats WHERE endpoint = 'down'"),
		"$mode: it backs off still, and a probe says why");
	is(ask("SELECT state_since FROM outbox.stats WHERE endpoint = 'down'"), $since, "$mode: since the same time");
	return;
}
ask('SELECT pg_current_xact_id()');
restarted('fast');
my @told = $receiver->wait_delivered(1, path => '/ok/watch');
my @failing = failing();
is(scalar(@failing), 1, 'after a while it is told');
my $told = decode_json($failing[0]{body})->{data};
is($told->{endpoint}, 'down', 'which');
is($told->{tenant}, 'acme', 'whose');
is($told->{reason}, 'the receiver answered 500', 'why');
like($told->{since}, qr/^20\d\d-\d\d-\d\dT[\d:.]+\+00:00$/, 'since when');
is(ask("SELECT created_at - (payload ->> 'since')::timestamptz BETWEEN '4 s' AND '1 h' FROM outbox.events WHERE topic = 'outbox.failing'"),
	't', 'not before that');
ok(wait_sql($node, "SELECT bool_and(status = 'delivered') FROM outbox.deliveries WHERE endpoint = 'watch'"), 'that it was told is stored');
my $probes = scalar($receiver->requests(path => '/status/500/down'));
restarted('fast');
ok(wait_until { $receiver->requests(path => '/status/500/down') > $probes } 'a probe after the restart');
ask("SELECT outbox.emit('a.x', '{}', tenant => 'acme')");
$receiver->wait_delivered(31, path => '/ok/mixed');
is(scalar(failing()), 1, 'once, also over a restart');

# It recovers, and fails again
$receiver->control(path => '/status/500/down', behave => '/ok');
$node->restart;    # a probe goes out at once
ok(wait_sql($node, "SELECT state = 'active' FROM outbox.stats WHERE endpoint = 'down'"), 'a probe succeeds');
ask("SELECT outbox.retry('down')");
ok(wait_sql($node, "SELECT state = 'active' AND delivered = 31 FROM outbox.stats WHERE endpoint = 'down'"), 'it recovers');
my $recovered = ask("SELECT state_since FROM outbox.stats WHERE endpoint = 'down'");
cmp_ok($recovered, 'gt', $since, 'which is a new state');
ok(wait_sql($node, "SELECT sum(pending + processing + retrying) = 0 FROM outbox.stats"), 'all is delivered');
$node->restart;
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running');
ok(wait_sql($node, "SELECT state_since = '$recovered' AND state = 'active' FROM outbox.stats WHERE endpoint = 'down'"),
	'since when it is active survives a restart, too');
$receiver->control(path => '/status/500/down', behave => '/status/503');
ask("SELECT count(outbox.emit('a.x', '{}', tenant => 'acme')) FROM generate_series(1, 30)");
ok(wait_until { failing() == 2 } 'told again');
is(scalar(failing()), 2, 'a new period of failing is told of again');

# A pause ends the period, and nothing is told of what is off
ask("SELECT outbox.pause_endpoint('down')");
ok(wait_sql($node, "SELECT failing_since IS NULL FROM outbox.positions JOIN outbox.endpoint_settings USING (endpoint_id)"
	  . " WHERE name = 'down' ORDER BY number DESC LIMIT 1"), 'a pause ends the period');

# The log names the database
my $log = slurp_file($node->logfile);
like($log, qr/outbox endpoint "down" is backing off.*?\n.*CONTEXT:  outbox worker 1 of database "postgres"/, 'log lines name the database');
like($log, qr/outbox endpoint "down" has failed without a success since .*: the receiver answered 500/, 'the log has it');

# A death is logged with the last error
endpoint($node, $receiver, 'dies', '/status/418/dies', "topics => '{d.*}', max_attempts => 1");
ask("SELECT outbox.emit('d.x', '{}')");
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats WHERE endpoint = 'dies'"), 'one dies');
like(slurp_file($node->logfile), qr/outbox delivery of event \S+ to "dies" is dead: max_attempts: the receiver answered 418/, 'with its last error');

# An outage of many is no flood of lines, and none of them is left out of the count
my $many = 300;
ask("SELECT count(outbox.create_endpoint('many.' || n, 'http://127.0.0.1:1/', topics => '{many.*}', backoff_base => '10 ms', backoff_max => '1 h', max_attempts => 50)) FROM generate_series(1, $many) n");
ask("SELECT outbox.emit('many.x', '{}') FROM generate_series(1, 60)");
ok(wait_sql($node, "SELECT count(*) = $many FROM outbox.stats WHERE endpoint LIKE 'many.%' AND state = 'backing_off'"), 'all back off');
my ($single, $summed) = (0, 0);
ok( wait_until {
		my $text = slurp_file($node->logfile);
		$single = () = $text =~ /endpoint "many\.\d+" is backing off/g;
		$summed = 0;
		$summed += $1 while $text =~ /outbox: (\d+) more endpoints began to back off/g;
		$single + $summed >= $many;
	}
	'each is in the log, by itself or in a sum') or diag "$single $summed";
cmp_ok($single, '<', $many / 2, "$single lines of their own");

# Nor is the loss of many events, which were removed by hand
endpoint($node, $receiver, 'gone', '/ok/gone', "topics => '{gone.*}'");
ok(pause($node, 'gone'), 'paused');
ask("SELECT count(outbox.emit('gone.x', '{}')) FROM generate_series(1, $many)");
ask(park_as_dead("s.name = 'gone' AND e.topic = 'gone.x'"));
ask("DELETE FROM outbox.events WHERE topic = 'gone.x'");
ask("SELECT outbox.retry('gone'), outbox.resume_endpoint('gone')");
ok(wait_sql($node, "SELECT count(*) = $many FROM outbox.parked WHERE reason = 'event is gone'"), 'all are dead');
my @lines = slurp_file($node->logfile) =~ /for endpoint "gone" is gone/g;
cmp_ok(scalar(@lines), '<', $many / 2, @lines . ' lines of their own');

$node->stop;
done_testing();
