# A library's call that never returns ends the worker, not the server, and holds its endpoint alone.
# libcurl is made to get stuck in each way that a shim knows, for one receiver.  Another endpoint
# is served soon after.  What was held is served when its hold is over, and nothing is lost.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my @ways = qw(spin pause read malloc search callback);
push @ways, 'lock' unless $ENV{OUTBOX_MEMORY_CHECKER};    # which has a malloc() of its own
my $order = PostgreSQL::Test::Utils::tempdir() . '/order';
my $log = PostgreSQL::Test::Utils::tempdir('log') . '/producer';

$ENV{OUTBOX_STUCK} = $order;
$ENV{LD_PRELOAD} = join ':', shim('stuck'), shim('allocator');
my $node = outbox_node('main', conf => is_installed('outbox_aws') ? "outbox.sinks = 'webhook, aws'\n" : '');
delete $ENV{LD_PRELOAD};
my $good = OutboxTest::Receiver->new('good');
my $bad = OutboxTest::Receiver->new('bad');
my $session = $node->background_psql('postgres');

sub order
{
	my ($way) = @_;

	unlink "$order.stuck";
	PostgreSQL::Test::Utils::append_to_file("$order.new", "$way $bad->{port}\n");
	rename "$order.new", $order or die "$order: $!";
	return;
}

# The endpoint has a connection, and its next event meets a call that does not return.
my $stuck = 'a library crashed for this endpoint, or did not return within 2 s';
my $stuck_of_tenant = 'a library crashed for this endpoint or others of its tenant, or did not return within 2 s';

sub get_stuck
{
	my ($endpoint, $way, $more) = @_;
	my $worker = worker_pid($node);

	order($way);
	my $id = emit($node, "$endpoint.n", '{"stuck": true}', $more);
	my $reason = $more ? $stuck_of_tenant : $stuck;
	ok(new_worker($node, $worker), "$way: the worker ends, and another one follows");
	endpoint_shows($node, $endpoint, "state = 'held' AND reason = '$reason' AND next_attempt_at > now()", "$way: the endpoint is held, and the view says why");
	return $id;
}

endpoint($node, $good, 'good', '/ok/good', "topics => '{load.*}'");
my $producer = start_producer($node, $log, rate => 50, keys => 10);
my %ids;
foreach my $way (@ways)
{
	endpoint($node, $bad, $way, "/ok/$way", "topics => '{$way.*}'");
	$bad->wait_delivered(1, id => emit($node, "$way.n", '{}'));
	$ids{$way} = get_stuck($way, $way);
	unlink $order;
	my $before = stat_of($node, 'good', 'delivered');
	endpoint_shows($node, 'good', "delivered > $before + 20 AND state = 'active'", "$way: the other endpoint goes on");
	is(ask("SELECT string_agg(endpoint, ' ') FROM outbox.held_steps WHERE step = 'send' AND reason = 'stuck' AND endpoint = '$way'"),
		$way, "$way: a view has the hold");
}
is(ask("SELECT string_agg(endpoint, ' ' ORDER BY endpoint) FROM outbox.stats WHERE endpoint NOT IN (SELECT s.endpoint FROM outbox.held_steps s WHERE s.endpoint IS NOT NULL) AND state = 'held'"),
	'', 'none is held without a row there');
is(ask("SELECT count(*) FROM outbox.held_steps WHERE step = 'send' AND endpoint = 'good'"), 0, 'and the other never was');

# A tenant's endpoint is held alone, and all of them once a second one does it.  A tenant that
# drops its endpoint and makes another one does not begin anew.
my $of = "tenant => 'evil', topics => '{%s.*}'";
endpoint($node, $bad, $_, "/ok/$_", sprintf $of, $_) foreach qw(evil1 evil2);
endpoint($node, $good, 'kind', '/ok/kind', "tenant => 'kind', topics => '{kind.*}'");
my $more = "tenant => 'evil'";
$bad->wait_delivered(1, id => emit($node, "$_.n", '{}', $more)) foreach qw(evil1 evil2);
get_stuck('evil1', 'spin', $more);
unlink $order;
$bad->wait_delivered(1, id => emit($node, 'evil2.n', '{}', $more));
ok(1, 'an endpoint of a tenant is held alone');
ask("SELECT outbox.drop_endpoint('evil1', discard => true)");
endpoint($node, $bad, 'evil3', '/ok/evil3', sprintf $of, 'evil3');
get_stuck('evil3', 'spin', $more);
unlink $order;
my $once = worker_pid($node);
ask("SELECT outbox.drop_endpoint('evil3', discard => true)");
endpoint($node, $bad, 'evil4', '/ok/evil4', sprintf $of, 'evil4');
endpoint_shows($node, $_, "state = 'held' AND reason = '$stuck_of_tenant'", "$_: then all endpoints of its tenant are held, also new ones") foreach qw(evil2 evil4);
is(ask("SELECT failures FROM outbox.held_steps WHERE step = 'send' AND next_try_at - now() BETWEEN '65 s' AND '120 s' AND last_error ~ 'library' AND endpoint IS NULL"), 2, 'for longer');
wait_status($node, emit($node, 'kind.n', '{}', "tenant => 'kind'"), 'delivered', 'another tenant is served');
is(worker_pid($node), $once, 'by the same worker');
ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE tenant IS NOT NULL");

# The same in the sink for AWS
if (is_installed('outbox_aws'))
{
	ask("SELECT outbox.create_endpoint('aws', 'arn:aws:sqs:eu-central-1:123456789012:q', '{aws.*}', config => '{\"endpoint_url\": \"http://127.0.0.1:$bad->{port}\"}', credentials => '{\"access_key_id\": \"a\", \"secret_access_key\": \"b\"}', format => 'raw')");
	get_stuck('aws', 'spin');
	unlink $order;
	ask("SELECT outbox.drop_endpoint('aws', discard => true)");
	is(ask("SELECT count(*) FROM outbox.held_steps WHERE step = 'send' AND endpoint IS NULL AND failures = 1"), 0, 'without a tenant its hold goes with it');
}

# The first one is served again by itself.
endpoint_shows($node, $ways[0], "state = 'active'", 'a hold ends by itself');
wait_status($node, $ids{ $ways[0] }, 'delivered', 'and what it had waits no longer');

# The next hold is twice as long.  A reload ends all, and their lengths stay.
get_stuck($ways[0], 'spin');
is(ask("SELECT failures FROM outbox.held_steps WHERE step = 'send' AND endpoint = '$ways[0]' AND next_try_at - now() BETWEEN '65 s' AND '120 s'"),
	2, 'the second hold is longer');
unlink $order;
ask('SELECT pg_reload_conf()');
endpoint_shows($node, $_, "state = 'active'", "$_: a reload ends its hold") foreach @ways;
wait_status($node, $ids{$_}, 'delivered', "$_: its event is delivered") foreach @ways;
get_stuck($ways[0], 'spin');
is(ask("SELECT failures FROM outbox.held_steps WHERE step = 'send' AND endpoint = '$ways[0]' AND next_try_at - now() > '130 s'"), 3,
	'the third hold is longer still');
unlink $order;
ask('SELECT pg_reload_conf()');
endpoint_shows($node, $ways[0], "state = 'active'", 'it is served again');

# A worker that is to end does, in the call and in the call that frees what the library has.
# Seconds from SIGTERM to the end of the process, which has met it in a call.
sub ends_within
{
	my ($way, $most) = @_;
	my $took;

	# A machine that does other work may be late, and not each time.
	foreach (1 .. 3)
	{
		my $worker = worker_pid($node);

		order($way);
		emit($node, "$way.n", '{}');
		wait_until { -e "$order.stuck" } "$way: the worker is in a call";
		my $begun = time;
		kill 'TERM', $worker;
		wait_until { process_is_gone($worker) } "$way: it is terminated there";
		$took = time - $begun;
		unlink $order;
		ask('SELECT pg_reload_conf()');
		new_worker($node, $worker);
		endpoint_shows($node, $way, "state = 'active'", "$way: it is served again");
		note(sprintf '%s: %.2f s', $way, $took);
		last if $took < $most;
	}
	cmp_ok($took, '<', $most, "$way: the worker is terminated in the call") unless $ENV{OUTBOX_MEMORY_CHECKER};    # which takes long itself
	return;
}

ends_within($_, $_ eq 'lock' ? 5 : 3) foreach grep { /^(?:spin|pause|lock)$/ } @ways;
my $worker = worker_pid($node);
order('cleanup');
ask("SELECT pg_terminate_backend($worker)");
ok(new_worker($node, $worker), 'it is terminated, and the call of its end does not return');
unlink $order;

# Nothing of all that has restarted the server.
is($session->query_safe('SELECT 1'), 1, 'a session has lived through all of it');
$session->quit;
stop_producer($producer);
ask('SELECT pg_reload_conf()');
check_history($node, $good, $log, endpoints => ['/ok/good'], max_duplicates => 50 * (@ways + 20), name => 'the other endpoint: nothing is lost, and each key is in order');
order('read');
emit($node, "$ways[2].n", '{}');
ok((wait_until { -e "$order.stuck" } 'stuck'), 'the worker is in a call again');
$node->stop('fast');
my $lines = slurp_file($node->logfile);
unlike($lines, qr/terminating any other active server processes|reinitializing|was terminated by signal/, 'the server has not restarted');
like($lines, qr/"outbox worker" \(PID \d+\) exited with exit code 1/, 'the process ended as after an error');
like($lines, qr/outbox worker 1 of database \d+ ended itself: a library crashed for this endpoint, or did not return within 2 s \(endpoint \d+\)/, 'and the log says why');
done_testing();
