# One endpoint's failures, one large transaction or one lock delay no other endpoint.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $quick = "backoff_base => '50 ms', backoff_max => '200 ms'";

endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{fine.*}'");

sub is_quick
{
	my ($name) = @_;
	my $start = time;
	$receiver->wait_delivered(1, id => emit($node, 'fine.one', '{}', "key => 'k'"));
	cmp_ok(seconds_since($start), '<', 5, $name);
	return;
}

sub stats
{
	my ($endpoint, $condition, $name) = @_;
	return ok(
		wait_sql($node, "SELECT $condition FROM outbox.stats WHERE endpoint = '$endpoint'"),
		$name);
}

# One port has no listener, one name does not exist, one receiver never answers.
# Each failure is seen within the timeout, with the reason in words.
watch_machine();
my $closed = IO::Socket::INET->new(Proto => 'tcp', LocalAddr => '127.0.0.1');    # it does not listen
my $port = $closed->sockport;
my $start = time;
$node->safe_psql('postgres', <<"SQL");
SELECT outbox.create_endpoint('refused', 'http://127.0.0.1:$port/', topics => '{trouble.*}', $quick);
SELECT outbox.create_endpoint('nameless', 'https://nowhere.invalid/', topics => '{trouble.*}', $quick, connect_timeout => '2 s');
SQL
endpoint($node, $receiver, 'hangs', '/hang/h',
	"topics => '{trouble.*}', timeout => '500 ms', max_in_flight => 32, $quick");
$node->safe_psql('postgres',
	"SELECT count(outbox.emit('trouble.n', '{}'::jsonb, key => 'k' || n % 50)) FROM generate_series(1, 3000) n");
stats('refused', "last_error LIKE 'could not connect%'", 'a connection that is refused, in words');
stats('hangs', "last_error LIKE 'timed out after 0.5 s%'", 'a receiver that says nothing');
stats('nameless', "last_error ~ 'resolv'", 'a name that does not exist');
cmp_ok(seconds_since($start), '<', 20, 'all of it within their timeouts');
is_quick('meanwhile the others are served');
stats('hangs', "state = 'backing_off' AND reason <> '' AND next_attempt_at IS NOT NULL",
	'an endpoint that hangs is backing off');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM outbox.parked p JOIN outbox.endpoint_settings e USING (endpoint_id)"
		  . " WHERE e.name IN ('refused', 'hangs') GROUP BY e.name HAVING count(*) > 600"),
	'', 'and a whole backlog is not parked for it');
$node->safe_psql('postgres',
	"SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name <> 'fine'");

# Locks on the tables: the requests of the loop go on, and what was emitted
# before or after is delivered when the lock is gone
endpoint($node, $receiver, 'slow', '/slow/s?ms=300', "topics => '{slow.*}', max_in_flight => 1");
my $session = $node->background_psql('postgres');
foreach my $table (qw(events events_0 parked positions attempt_log endpoint_settings pieces))
{
	my $slow = emit($node, 'slow.one', '{}');
	$receiver->wait_for(1, id => $slow);
	$session->query_safe("BEGIN; LOCK TABLE outbox.$table IN ACCESS EXCLUSIVE MODE");
	$receiver->wait_delivered(1, id => $slow);
	pass("$table is locked: a request ends as usual");
	$session->query_safe('COMMIT');
	is_quick("$table is free again: delivered");
}

# A notice has to wait for a session that creates an index on the log, and the worker does not
my %answer = (dead => '/status/500/a', disabled => '/status/410/a');
foreach my $what (sort keys %answer)
{
	endpoint($node, $receiver, 'told', '/ok/told', "topics => '{outbox.$what}'");
	endpoint($node, $receiver, 'ending', $answer{$what}, "topics => '{ending}', max_attempts => 1");
	$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('ending')");
	my $ending = emit($node, 'ending', '{}');
	my $worker = worker_pid($node);
	$session->query_safe('BEGIN; LOCK TABLE outbox.events IN SHARE MODE');
	$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('ending')");
	$receiver->wait_for(1, id => $ending);
	my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
	ok( wait_sql($node,
			"SELECT last_loop_at > timestamptz '$since' + interval '3 s' FROM outbox.workers"),
		"$what while the log is locked: the loop of the worker goes on");
	is( $node->safe_psql('postgres', 'SELECT pid, restarts FROM outbox.workers'),
		"$worker|0", 'the same one as before');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM outbox.step_holds() WHERE step = 'notice'}), '0', 'and no notice has waited for the lock in vain');
	$session->query_safe('COMMIT');
	$receiver->wait_delivered(1, topic => "outbox.$what");
	stats('told', 'delivered = 1', 'the notice is written once the lock is gone');
	is( $node->safe_psql('postgres', "SELECT count(*) FROM outbox.events WHERE topic = 'outbox.$what'"),
		'1', 'once');
	is(scalar(() = $receiver->requests(id => $ending)), 1, 'and nothing was repeated');
	$node->safe_psql('postgres',
		"SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name IN ('told', 'ending')");
}
is($node->safe_psql('postgres', 'SELECT restarts FROM outbox.workers'),
	'0', 'no worker ended because of a lock');

# A giant transaction, late committers around it, and others flowing
my $late = $node->background_psql('postgres');
$late->query_safe('BEGIN');
my $late_id = $late->query_safe(q{SELECT outbox.emit('fine.late', '{}'::jsonb)});
my $sink = OutboxTest::Receiver->new('sink');
endpoint($node, $sink, 'big', '/ok/big', "topics => '{big.*}'");
$session->query_safe('BEGIN');
$session->query_safe(
	"SELECT count(outbox.emit('big.n', jsonb_build_object('n', n), key => 'k' || n % 100)) FROM generate_series(1, 100000) n");
is_quick('while it is open');
$session->query_safe('COMMIT');
is_quick('right after its commit');
$late->query_safe('COMMIT');
$receiver->wait_delivered(1, id => $late_id);
pass('a transaction that began before it and ended after it');
cmp_ok(private_memory(worker_pid($node)), '<', 58, 'the worker did not take it all into memory (MB)')
  unless $ENV{OUTBOX_MEMORY_CHECKER};
$_->quit foreach $late, $session;

# A change of topics and of the URL while a request is under way and others wait
# for it: what waits is judged anew, and goes where it is to go now
endpoint($node, $receiver, 'waiting', '/ok/waiting', "topics => '{w.*}', max_in_flight => 1, ordering => 'none', timeout => '10 min'");
$receiver->control(path => '/ok/waiting', behave => '/hold');
my @waiting = map { emit($node, $_ % 2 ? 'w.gone' : 'w.stays', "{\"n\": $_}") } 1 .. 20;
$receiver->wait_for(1, path => '/ok/waiting');
ok(wait_sql($node, "SELECT pending = 19 AND processing = 1 FROM outbox.stats WHERE endpoint = 'waiting'"),
	'one is under way, and others wait');
$node->safe_psql('postgres', "SELECT outbox.alter_endpoint('waiting', topics => '{w.stays}', url => '"
	  . $receiver->url('/ok/moved') . "')");
ok( wait_sql($node,
		"SELECT max(s.version) = 2 FROM outbox.subscriptions s JOIN outbox.endpoint_settings e"
		  . " USING (endpoint_id) WHERE e.name = 'waiting'"),
	'the change is stored');
$receiver->control(path => '/ok/waiting', behave => '/ok');
$receiver->wait_delivered(10, path => '/ok/moved');
wait_settled($node);
is(join(' ', map { $_->{id} } $receiver->requests(path => '/ok/waiting')), $waiting[0], 'the old URL got what was under way');
is( join(' ', sort map { $_->{id} } $receiver->requests(path => '/ok/moved')),
	join(' ', sort @waiting[ map { 2 * $_ + 1 } 0 .. 9 ]),
	'the new one what it still wants');
is( $node->safe_psql('postgres', "SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'waiting' AND status = 'delivered'"),
	11, 'and outbox.deliveries shows that');
$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('waiting', discard => true)");

# A change of topics: an event is judged by the subscription that was valid at its
# place, by the worker and by the view
$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('big', discard => true)");
endpoint($node, $receiver, 'changing', '/ok/changing', "topics => '{a.*}'");
my $ask = sub {
	my ($topic) = @_;
	return emit($node, $topic, '{}');
};
my @wanted = ($ask->('a.one'));
$ask->('b.unwanted');
$receiver->wait_delivered(1, path => '/ok/changing', id => $wanted[0]);
wait_settled($node);
$node->safe_psql('postgres', "SELECT outbox.alter_endpoint('changing', topics => '{b.*}')");
ok( wait_sql($node,
		"SELECT max(s.version) = 2 FROM outbox.subscriptions s JOIN outbox.endpoint_settings e"
		  . " USING (endpoint_id) WHERE e.name = 'changing'"),
	'the place from which it holds is stored');
push @wanted, $ask->('b.one');
$ask->('a.unwanted');
$receiver->wait_delivered(1, path => '/ok/changing', id => $wanted[1]);
wait_settled($node);
my $pid = worker_pid($node);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
push @wanted, $ask->('b.two');
$receiver->wait_delivered(1, path => '/ok/changing', id => $wanted[2]);
wait_settled($node);
is_deeply([ map { $_->{id} } $receiver->requests(path => '/ok/changing') ],
	\@wanted, 'each event by the subscription of its place');
is( $node->safe_psql('postgres',
		"SELECT string_agg(event_id || ' ' || status, ',' ORDER BY seq) FROM outbox.deliveries WHERE endpoint = 'changing'"),
	join(',', map { "$_ delivered" } @wanted),
	'outbox.deliveries agrees');

# Paused, moved, altered, dropped and made again under load
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
endpoint($node, $receiver, 'steady', '/ok/steady', "topics => '{load.*}'");
my $producer = start_producer($node, $log, rate => 300, keys => 6);
my @verbs = (
	"pause_endpoint('steady')", "resume_endpoint('steady')",
	"alter_endpoint('steady', max_in_flight => 3)",
	"alter_endpoint('steady', headers => '{\"x-a\": \"b\"}')",
	"alter_endpoint('steady', timeout => '5 s', reset => '{max_in_flight,headers}')");
foreach my $round (1 .. 4)
{
	foreach my $verb (@verbs)
	{
		$node->safe_psql('postgres', "SELECT outbox.$verb");
		$node->safe_psql('postgres',
			"SELECT outbox.create_endpoint('brief', '" . $receiver->url('/slow/brief?ms=20') . "', topics => '{load.*}')");
		$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('brief', discard => true)");
	}
}
my $so_far = () = $receiver->delivered(path => '/ok/steady');
$receiver->wait_delivered($so_far + 100, path => '/ok/steady');
stop_producer($producer);
check_history($node, $receiver, $log, endpoints => ['/ok/steady'],
	name => 'changed under load: nothing lost, nothing twice, all in order');

# A thousand endpoints, of which one subscribes to the event
my $url = $receiver->url('/ok');
$node->safe_psql('postgres',
	"SELECT count(outbox.create_endpoint('many-' || n, '$url/many/' || n, topics => ARRAY['many.t' || n])) FROM generate_series(1, 1000) n");
my $id = emit($node, 'many.t777', '{}');
$receiver->wait_delivered(1, id => $id);
is_deeply([ map { $_->{path} } $receiver->requests(id => $id) ],
	['/ok/many/777'], 'one of a thousand endpoints gets it');
is_quick('a thousand endpoints slow no other endpoint down');
$node->stop;
done_testing();
