# A replay, a drop and a seek are carried out completely when the server restarts in between.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $n = 5000;

sub emit_many
{
	my ($topic, $count) = @_;
	return ask("SELECT count(outbox.emit('$topic', jsonb_build_object('n', n), key => 'k' || n % 50))"
		  . " FROM generate_series(1, $count) n");
}

sub progress
{
	return ask('SELECT events FROM outbox.replays');
}

# A replay of 5,000 events.  The server dies in the middle.
endpoint($node, $receiver, 'a', '/ok/a', "topics => '{a.*}', max_in_flight => 8");
emit_many('a.n', $n);
ok(wait_sql($node, "SELECT delivered = $n FROM outbox.stats WHERE endpoint = 'a'"), 'delivered once');
ok(wait_settled($node), 'and settled');
$receiver->control(path => '/ok/a', behave => '/slow/a?ms=40');
is(ask("SELECT outbox.replay('a', 'epoch')"), $n, "replay: $n events");
$receiver->wait_new(500, '/ok/a');

# The rest of it takes longer than the checks that follow.
$receiver->control(path => '/ok/a', behave => '/slow/a?ms=400');
cmp_ok(progress(), '>', 0, 'its progress is visible');
cmp_ok(progress(), '<', $n, 'it is not through');
is(ask('SELECT count(finished_at) FROM outbox.replays'), '0', 'nor does it say so');
my $id = emit($node, 'a.live', '{"n": 0}', "key => 'live'");
$receiver->wait_delivered(1, id => $id);
is(ask('SELECT count(finished_at) FROM outbox.replays'), '0', 'a live event does not wait for it');
my $before = progress();
kill_everything($node);
start_again($node);
cmp_ok(progress(), '>=', $before - 256, 'what was stored is still there');
$receiver->control(path => '/ok/a', behave => '/ok');
ok(wait_sql($node, 'SELECT finished_at IS NOT NULL FROM outbox.replays'), 'it goes on, and ends');
ok(wait_settled($node), 'settled');
is(progress(), $n, 'all of them were sent again, and none was counted twice');
my (%first, %again, %out_of_order, %last);
foreach my $request ($receiver->delivered(path => '/ok/a'))
{
	next if $request->{id} eq $id;
	if (($request->{headers}{'outbox-redelivery'} // '') eq 'replay')
	{
		my ($number) = $request->{body} =~ /"n": ?(\d+)/;
		next if $again{ $request->{id} }++;
		$out_of_order{ $request->{key} } = 1 if ($last{ $request->{key} } // 0) > $number;
		$last{ $request->{key} } = $number;
	}
	else { $first{ $request->{id} }++ }
}
is(scalar(keys %again), $n, 'each came again, and says that it is a replay');
is(join(' ', sort keys %out_of_order), '', 'in the order of its key');
my $twice = 0;
$twice += $_ - 1 foreach values %again;
cmp_ok($twice, '<=', 600, "few came twice because of the crash ($twice)");

# Dropped with thousands in flight and waiting
endpoint($node, $receiver, 'b', '/hang/b', "topics => '{b.*}', max_in_flight => 512, ordering => 'none'");
endpoint($node, $receiver, 'c', '/status/500/c', "topics => '{b.*}', max_attempts => 1, on_exhausted => 'block'");
emit_many('b.n', 6000);
ask("SELECT count(outbox.emit('b.n', '{}'::jsonb)) FROM generate_series(1, 3000)");
ok(wait_sql($node, "SELECT processing = 512 FROM outbox.stats WHERE endpoint = 'b'"), 'hundreds are in flight');
my $pid = worker_pid($node);
ask("SELECT outbox.drop_endpoint('b', discard => true), outbox.drop_endpoint('c', discard => true)");
ok(wait_sql($node, "SELECT (endpoints, in_flight) = (1, 0) FROM outbox.workers"), 'dropped: nothing is in flight');
foreach my $table (qw(parked commands subscriptions endpoint_secrets replays))
{
	ok( wait_sql($node, "SELECT count(*) = 0 FROM outbox.$table t WHERE endpoint_id <> 0"
			  . " AND endpoint_id NOT IN (SELECT endpoint_id FROM outbox.endpoint_settings)"),
		"no row is left in $table");
}
is(worker_pid($node), $pid, 'by the same worker');
$id = emit($node, 'a.after', '{"n": 0}', "key => 'after'");
$receiver->wait_delivered(1, id => $id);
endpoint($node, $receiver, 'b', '/ok/b', "topics => '{b.*}'");
$id = emit($node, 'b.new', '{}');
$receiver->wait_delivered(1, id => $id);
is(scalar(() = $receiver->requests(path => '/ok/b')), 1, 'another one of the same name begins anew');

# seek: what is skipped is skipped, what is gone back to comes again
ask("SELECT outbox.pause_endpoint('b')");
emit_many('b.skipped', 2000);
my $again = emit($node, 'b.again', '{}');
ask("SELECT outbox.seek_endpoint('b', 'now'), outbox.resume_endpoint('b')");
$id = emit($node, 'b.next', '{}');
$receiver->wait_delivered(1, id => $id);
is(scalar(() = $receiver->requests(path => '/ok/b', topic => 'b.skipped')), 0, 'skipped');
my $shown = "SELECT string_agg(topic || ' ' || status, ', ' ORDER BY seq) = '%s' FROM outbox.deliveries WHERE endpoint = 'b'";
ok(wait_sql($node, sprintf($shown, 'b.new delivered, b.next delivered')), 'and outbox.deliveries does not call it delivered');
is(ask("SELECT outbox.replay('b', now() - interval '1 hour', topics => '{b.again}')"), 1, 'one of it is replayed');
$receiver->wait_delivered(1, id => $again);
ok(wait_sql($node, sprintf($shown, 'b.new delivered, b.again delivered, b.next delivered')), 'and shown');
ask("SELECT outbox.seek_endpoint('b', 'beginning')");
$receiver->wait_for(1000, path => '/ok/b', topic => 'b.skipped');
$node->stop('immediate');
$node->start;
$receiver->wait_delivered(2000, path => '/ok/b', topic => 'b.skipped');
ok(wait_settled($node), 'gone back to: delivered, with a restart in the middle');
my %ids = map { $_->{id} => 1 } $receiver->delivered(path => '/ok/b', topic => 'b.skipped');
is(scalar(keys %ids), 2000, 'all of it');

# A test event survives a restart like any other
$receiver->control(path => '/ok/b', behave => '/status/500');
ask("SELECT outbox.alter_endpoint('b', backoff_base => '200 ms', backoff_max => '200 ms')");
$id = ask("SELECT outbox.send_test('b')");
wait_status($node, $id, 'retrying', 'a test event that fails');
$node->restart;
$receiver->control(path => '/ok/b', behave => '/ok');
ok(wait_sql($node, "SELECT outbox.wait_for('$id')"), 'is delivered after a restart');

$node->stop;
done_testing();
