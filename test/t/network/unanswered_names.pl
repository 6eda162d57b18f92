# Names that get no answer count against their own endpoints, and no other name waits for them.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

own_network();

my $hung = 400;
my $receiver = OutboxTest::Receiver->new('main');
my ($zone, $questions) = start_dns();
my $node = outbox_node('main', conf => is_installed('outbox_aws') ? "outbox.sinks = 'webhook, aws'\n" : '');

$zone->('fine.test' => '127.0.0.1', 'late.test' => '127.0.0.1', map { ("dead$_.test" => 'silent') } 1 .. $hung);
ask("SELECT count(outbox.create_endpoint('dead' || n, 'http://dead' || n || '.test:$receiver->{port}/ok/dead' || n,"
	  . " topics => '{dead}', connect_timeout => '1 s', backoff_base => '200 ms', backoff_max => '1 s')) FROM generate_series(1, $hung) n");
ask("SELECT count(outbox.emit('dead', '{}')) FROM generate_series(1, 20)");
ok( wait_sql($node, "SELECT count(DISTINCT endpoint) = $hung FROM outbox.attempts WHERE endpoint ~ '^dead'"),
	"$hung names that get no answer are all tried");
is( ask("SELECT string_agg(DISTINCT error, '; ') FROM outbox.attempts WHERE endpoint ~ '^dead'"),
	'timed out after 1 s while resolving the host', 'each attempt has waited for an answer');

# Others, while the threads wait
foreach my $name (qw(fine late))
{
	ask("SELECT outbox.create_endpoint('$name', 'http://$name.test:$receiver->{port}/ok/$name', topics => '{$name}', max_attempts => 1)");
	ask("SELECT count(outbox.emit('$name', '{}')) FROM generate_series(1, 100)");
	ok(wait_sql($node, "SELECT count(*) FILTER (WHERE status = 'delivered') = 100 FROM outbox.deliveries WHERE endpoint = '$name'"), "$name: a name that gets an answer");
	is(ask("SELECT failed_attempts FROM outbox.stats WHERE endpoint = '$name'"), '0', 'no attempt of it has failed');
}
my $worker = worker_pid($node);
my @threads = glob "/proc/$worker/task/*";
cmp_ok(scalar(@threads), '>=', $hung, 'the names that hang still have their threads');
cmp_ok(scalar(@threads), '<=', 516, 'which are bounded');

# AWS: libcurl's own lookups, for which newer libcurl has few threads
if (is_installed('outbox_aws'))
{
	my $hang = 60;
	my $create = sub {
		my ($name, $host) = @_;
		return "SELECT outbox.create_endpoint('$name', 'arn:aws:sqs:eu-central-1:123456789012:q', '{$name}', config => '{\"endpoint_url\": \"http://$host:$receiver->{port}\"}',"
		  . q~ credentials => '{"access_key_id": "a", "secret_access_key": "b"}', format => 'raw', timeout => '60 s', connect_timeout => '60 s');~;
	};
	ask(join ' ', map { $create->("aws$_", "dead$_.test") . " SELECT outbox.emit('aws$_', '{}');" } 1 .. $hang);
	ok(wait_sql($node, "SELECT sum(processing) = $hang FROM outbox.stats WHERE endpoint ~ '^aws'"), "$hang names of AWS wait for an answer");
	ask($create->('good', 'fine.test') . " SELECT outbox.emit('good', '{}')");
	ok(wait_sql($node, "SELECT coalesce(reason, last_error) LIKE 'SQS: %' FROM outbox.stats WHERE endpoint = 'good'"), 'and another one is asked');
	is(ask("SELECT sum(processing) = $hang FROM outbox.stats WHERE endpoint ~ '^aws'"), 't', 'while they wait');
}
$node->stop;
done_testing();
