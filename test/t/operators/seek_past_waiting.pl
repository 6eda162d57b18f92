# Events that waited behind one of their key when a seek skipped it are not shown as delivered.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# The statuses of an endpoint's deliveries in the order of the log, as letters, from the
# view and from a page
sub shown
{
	my ($endpoint) = @_;
	my $view = ask("SELECT COALESCE(string_agg(left(status, 1), '' ORDER BY seq), '') FROM outbox.deliveries WHERE endpoint = '$endpoint'");
	my $page = ask("SELECT COALESCE(string_agg(left(status, 1), '' ORDER BY seq), '') FROM outbox.deliveries_page('$endpoint')"
		  . ' WHERE seq IS NOT NULL');
	is($page, $view, "$endpoint: the page shows the same");
	return $view;
}

sub emit_lane
{
	my ($topic, $n) = @_;
	return split /\n/, ask("SELECT outbox.emit('$topic', jsonb_build_object('n', n), key => 'A') FROM generate_series(1, $n) n");
}

# Three are delivered, and the others are read and wait: the fourth is in flight until
# the endpoint is paused and its request has ended.
sub stopped_in_lane
{
	my ($name) = @_;
	endpoint($node, $receiver, $name, "/slow/$name?ms=1200", "topics => '{$name.*}'");
	my @lane = emit_lane("$name.a", 10);
	$receiver->wait_delivered(1, id => $lane[1]);
	ask("SELECT outbox.pause_endpoint('$name')");
	ok( wait_sql($node, "SELECT processing = 0 AND delivered + pending = 10 AND delivered > 1 FROM outbox.stats WHERE endpoint = '$name'"),
		"$name: paused in its lane");
	ok( wait_sql($node, "SELECT count(*) FILTER (WHERE d.status = 'delivered') = min(s.delivered) FROM outbox.deliveries d"
			  . " JOIN outbox.stats s USING (endpoint) WHERE endpoint = '$name'"), 'and that is stored');
	$receiver->control(path => "/slow/$name", behave => '/ok');
	return @lane;
}

my @lane = stopped_in_lane('sk');
my $delivered = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'sk'");
my $before = 'd' x $delivered;
my $left = 10 - $delivered;
cmp_ok($left, '>', 0, 'some wait');
is(shown('sk'), $before . 'p' x $left, 'they wait');
ask("SELECT outbox.seek_endpoint('sk', 'now')");
is(shown('sk'), $before, 'a seek to now skips them at once');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'sk' AND delivered_at IS NULL"), 0, 'what is shown was delivered');
ok(wait_sql($node, "SELECT pending = 0 FROM outbox.stats WHERE endpoint = 'sk'"), 'nothing is pending, once the worker has read of the seek');
is(ask("SELECT outbox.wait_for('$lane[9]', '0')"), 't', 'it is as if not subscribed to');
my $next = emit($node, 'sk.b', '{}');
ask("SELECT outbox.resume_endpoint('sk')");
$receiver->wait_delivered(1, id => $next);
ok(wait_settled($node), 'settled');
is(shown('sk'), $before . 'd', 'the next one is delivered and shown');
is(scalar(() = $receiver->requests(id => $lane[9])), 0, 'what was skipped is not sent');

# A seek back shows them again, and sends them
ask("SELECT outbox.pause_endpoint('sk'), outbox.seek_endpoint('sk', 'beginning')");
is(shown('sk'), 'p' x 11, 'after a seek to the beginning all wait');
ask("SELECT outbox.resume_endpoint('sk')");
ok(wait_sql($node, "SELECT count(*) = 11 AND bool_and(status = 'delivered') FROM outbox.deliveries WHERE endpoint = 'sk'"),
	'and are delivered');

# Back, and yet not before what waits
stopped_in_lane('st');
$delivered = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'st'");
my $at = ask('SELECT clock_timestamp()');
emit($node, 'other', '{}');
ok(wait_sql($node, "SELECT max(taken_at) > '$at' FROM outbox.ticks"), 'a later tick');
$at = ask('SELECT clock_timestamp()');
my $late = emit($node, 'st.late', '{}', "key => 'B'");
ask("SELECT outbox.seek_endpoint('st', '$at')");
is(shown('st'), 'd' x $delivered . 'p', 'a seek to a time skips what was before it, and not what came after');
ask("SELECT outbox.seek_endpoint('st', 'now')");
is(shown('st'), 'd' x $delivered, 'and so does a second seek');

# What is replayed is shown
ask("SELECT outbox.resume_endpoint('st')");
is(ask("SELECT outbox.replay('st', now() - interval '1 h')"), 11, 'all are replayed');
ok(wait_sql($node, "SELECT count(*) = 11 AND bool_and(status = 'delivered') FROM outbox.deliveries WHERE endpoint = 'st'"),
	'and shown as delivered');

done_testing();
