# A lack of descriptors is no failure: requests wait, nothing is counted, and it costs no CPU.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost');
my $receiver = OutboxTest::Receiver->new('main');
my $front = start_front('127.0.0.1:0', $receiver->{port}, cert => "$dir/good.crt", key => "$dir/good.key");

# The server may open fewer files than its endpoints have events
system('prlimit', '--pid', $$, '--nofile=1024:1024') == 0 or die "prlimit failed\n";
my $node = outbox_node('main', conf => "outbox.ssl_ca_file = '$dir/authority.crt'\n");
my $many = 40;
my $each = 60;

sub delivered
{
	my ($n, $endpoints, $name) = @_;

	ok( wait_sql($node,
			"SELECT count(*) = $n FROM outbox.deliveries WHERE endpoint ~ '$endpoints' AND status IN ('delivered', 'dead')"), $name);
	is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint ~ '$endpoints' AND status = 'dead'"), '0', 'none of them is dead');
	is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint ~ '$endpoints'"), $n, 'each took one attempt');
	return;
}

ask("SELECT count(outbox.create_endpoint('slow' || n, '" . $receiver->url('/slow/s') . "' || n || '?ms=500', topics => '{slow}', max_attempts => 1)) FROM generate_series(1, $many) n");
ask("SELECT count(outbox.emit('slow', '{}')) FROM generate_series(1, $each)");
delivered($many * $each, '^slow', 'more requests than descriptors: all events arrive');
like(slurp_file($node->logfile), qr/WARNING:  outbox worker can open 1024 files, but needs/, 'the log says so');

# None is left at all: what is below the limit is open
ask("SELECT outbox.create_endpoint('one', '" . $receiver->url('/ok/one') . "', topics => '{none}', max_attempts => 1)");
ask("SELECT outbox.create_endpoint('batch', '" . $receiver->url('/ok/batch') . "', topics => '{none}', max_attempts => 1, batch_size => 10)");
ask("SELECT outbox.create_endpoint('tls', 'https://localhost:$front->{port}/ok/tls', topics => '{none}', max_attempts => 1)");
$node->restart;
my $pid = worker_pid($node);
wait_sql($node, "SELECT state = 'running' FROM outbox.status");
my $open = 0;
$open++ while -e "/proc/$pid/fd/$open" || -l "/proc/$pid/fd/$open";
system('prlimit', '--pid', $pid, "--nofile=$open:") == 0 or die "prlimit failed\n";
ask("SELECT count(outbox.emit('none', '{}')) FROM generate_series(1, 100)");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.stats WHERE endpoint = '$_' AND reason = 'the process can open no more files'"),
	"$_: outbox.stats says what it waits for")
  foreach qw(one batch tls);
sleeps_meanwhile($pid, 5, 'it waits without using the CPU', sub { ask('SELECT pg_sleep(5)') });
is(ask("SELECT count(*) FROM outbox.attempts WHERE error IS NOT NULL"), '0', 'no attempt is counted');
is(ask("SELECT string_agg(DISTINCT state, ',') FROM outbox.stats"), 'active', 'no endpoint backs off');
system('prlimit', '--pid', $pid, '--nofile=1024:') == 0 or die "prlimit failed\n";
delivered(300, '^(one|batch|tls)', 'there are some again: all events arrive');
is(worker_pid($node), $pid, 'the worker has not ended');
$node->stop;
done_testing();
