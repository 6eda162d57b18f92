# A name server that does not answer delays only the endpoints whose names it has to answer for.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

own_network();
watch_machine();

my $hung = 300;
my $receiver = OutboxTest::Receiver->new('main');
my ($zone, $questions) = start_dns();

# The threads may be an eighth of the files
system('prlimit', '--pid', $$, '--nofile=2048:2048') == 0 or die "prlimit failed\n";
my $node = outbox_node('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';

# Names that are never answered for, far more than there may be threads
$zone->('fine.test' => '127.0.0.1', map { ("dead$_.test" => 'silent') } 1 .. $hung);
ask("SELECT outbox.create_endpoint('fine', 'http://fine.test:$receiver->{port}/ok/fine', topics => '{load.*}')");
ask("SELECT count(outbox.create_endpoint('dead' || n, 'http://dead' || n || '.test:$receiver->{port}/ok/dead' || n,"
	  . " topics => '{dead.*}', connect_timeout => '500 ms', backoff_base => '200 ms', backoff_max => '1 s')) FROM generate_series(1, $hung) n");
my $producer = start_producer($node, $log, rate => 200);
$receiver->wait_delivered(50, path => '/ok/fine');

# A lookup that has ended leaves nothing behind, and libcurl has no threads
ok(wait_until(sub { 1 == (() = glob '/proc/' . worker_pid($node) . '/task/*') }, 'one thread'),
	'the worker has one thread while nothing is looked up');

# Names in all usual spellings
my %form = (dotted => 'fine.test.', upper => 'FINE.test', local => 'localhost', below => 'a.localhost', many => 'many.test');
$zone->('many.test' => '127.0.0.2 127.0.0.3 ::1 127.0.0.1');
ask("SELECT outbox.create_endpoint('$_', 'http://$form{$_}:$receiver->{port}/ok/$_', topics => '{forms.*}')")
  foreach sort keys %form;
my $forms = emit($node, 'forms.one', '{}');
$receiver->wait_delivered(1, id => $forms, path => "/ok/$_") foreach sort keys %form;
pass('with a dot at the end, in capitals, of this machine, of several addresses of which one may be used');
ok(wait_sql($node, "SELECT count(*) = 5 AND bool_and(attempt = 1 AND error IS NULL) FROM outbox.attempts WHERE event_id = '$forms'"), 'each at the first attempt');
ask("SELECT outbox.create_endpoint('unknown', 'http://unknown.test:$receiver->{port}/ok/unknown', topics => '{unknown.*}', max_attempts => 1)");
$forms = emit($node, 'unknown.one', '{}');
wait_status($node, $forms, 'dead', 'a name that does not exist');
is(ask("SELECT error FROM outbox.attempts WHERE event_id = '$forms'"), 'could not resolve host', 'in words');

my $worker = worker_pid($node);
my $most = 0;
my $before = () = $receiver->delivered(path => '/ok/fine');
my $id = emit($node, 'dead.one', '{}');
my $waiting = wait_until
{
	my $threads = () = glob "/proc/$worker/task/*";
	$most = $threads if $threads > $most;
	$threads > 250 && ask("SELECT count(DISTINCT endpoint) > 250 FROM outbox.attempts WHERE event_id = '$id'") eq 't';
}
'as many as may be have been tried';
ok($waiting, "$hung names that get no answer");
is( ask("SELECT string_agg(DISTINCT error, '; ' ORDER BY error) FROM outbox.attempts WHERE event_id = '$id'"),
	'timed out after 0.5 s while resolving the host', 'what was looked up has failed, in words');
ok(wait_sql($node, "SELECT count(*) > 10 FROM outbox.stats WHERE reason = 'too many host names are being looked up' AND failed_attempts = 0 AND state = 'active'"),
	'the others wait, and say for what');
cmp_ok($most, '<=', 260, "the threads of the worker are bounded ($most)");
cmp_ok($most, '>=', 250, 'by the bound, not by chance');
$receiver->wait_delivered($before + 100, path => '/ok/fine');
pass('meanwhile the others are served');
is(ask("SELECT failed_attempts FROM outbox.stats WHERE endpoint = 'fine'"), '0', 'without a failure');

# It ends when it is told to, whatever its threads wait for
my $start = time;
ask("SELECT pg_terminate_backend($worker)");
ok(wait_until(sub { process_is_gone($worker) }, 'it has ended'), 'SIGTERM ends the worker');
my $took = seconds_since($start);
cmp_ok($took, '<', 10, sprintf('without them (%.2f s)', $took));
new_worker($node, $worker);
$worker = worker_pid($node);
wait_until { (() = glob "/proc/$worker/task/*") > 20 } 'the next one waits as well';

# The name server comes back
$zone->(map { ("dead$_.test" => '127.0.0.1') } 1 .. $hung);
ok( wait_sql($node,
		"SELECT count(*) = $hung AND bool_and(status = 'delivered') FROM outbox.deliveries WHERE event_id = '$id'"),
	'answered at last: all of it is delivered');
stop_producer($producer);
check_history($node, $receiver, $log, endpoints => ['/ok/fine'], max_duplicates => 100, max_dead => 1);

# A name server that is silent for a while: what is known is used meanwhile, and a
# name that gets no answer has one thread, however often it is asked for.
$zone->('never.test' => 'silent');
ask("SELECT outbox.create_endpoint('often', 'http://never.test:$receiver->{port}/ok/often', topics => '{often.*}',"
	  . " connect_timeout => '100 ms', backoff_base => '1 ms', backoff_max => '1 ms')");
$id = emit($node, 'often.one', '{}');

# Lookups of before may have all threads at first.
wait_until { lines_of($questions, qr/^never\.test A$/) } 'it is looked up';
my $attempts = ask("SELECT count(*) FROM outbox.attempts WHERE event_id = '$id'");
ok( wait_sql($node, "SELECT count(*) >= $attempts + 10 FROM outbox.attempts WHERE event_id = '$id'"), 'a name is asked for often');
cmp_ok(scalar(() = lines_of($questions, qr/^never\.test A$/)), '<=', 2, 'and looked up once');

# And the server stops
ask("SELECT outbox.create_endpoint('never', 'http://never.test:$receiver->{port}/ok/never', topics => '{never.*}', connect_timeout => '60 s', timeout => '60 s')");
emit($node, 'never.one', '{}');
wait_sql($node, 'SELECT sum(in_flight) > 0 FROM outbox.workers');
$start = time;
$node->stop('fast');
cmp_ok(seconds_since($start), '<', 20, 'the server stops while a lookup waits');
done_testing();
