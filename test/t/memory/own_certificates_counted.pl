# Idle connections with certificates of the endpoint's own count what these take in memory.
use strict;
use warnings;

use List::Util qw(min);
use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'a memory checker needs memory of its own' if $ENV{OUTBOX_MEMORY_CHECKER};

use constant WARM_UP => 5;
use constant HOSTS => 40;
use constant QUARTER => 4 * 1024;    # kB, of outbox.worker_memory
use constant NOISE => 1024;

my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'usual', 'authority', 'DNS:*.many.localhost');
my $receiver = OutboxTest::Receiver->new('main');
my $node = outbox_node('main', conf => "outbox.worker_memory = '16MB'\noutbox.worker_max_connections = 500\n");
my $front = start_front('127.0.0.1:0', $receiver->{port}, cert => "$dir/usual.crt", key => "$dir/usual.key");
my ($authority, $certificate, $key) = map { slurp_file("$dir/$_") } qw(authority.crt usual.crt usual.key);
my $chain = $certificate x int(65000 / length $certificate);
my $credentials = "jsonb_build_object('ca_certificate', '$authority', 'client_certificate', '$chain', 'client_key', '$key')";
my $worker = ask('SELECT pid FROM outbox.workers');
my ($before, $took);

ask("SELECT outbox.create_endpoint('one', 'https://host-0.many.localhost/', topics => '{one}')");
foreach my $n (1 .. HOSTS)
{
	ask("SELECT outbox.alter_endpoint('one', url => 'https://host-$n.many.localhost:$front->{port}/ok/one', credentials => $credentials);"
		  . " SELECT outbox.emit('one', '{}')");
	wait_sql($node, "SELECT delivered >= $n FROM outbox.stats WHERE endpoint = 'one'") or die;
	my $memory = private_memory($worker) * 1024;
	$before = $memory if $n == WARM_UP;
	# Free memory is returned from time to time, so the least counts.
	$took = min($took // (), $memory - $before) if $n > HOSTS * 0.75;
}
note(sprintf '%d sockets are open, and took %d kB', scalar(grep { (readlink($_) // '') =~ /^socket:/ } glob "/proc/$worker/fd/*"), $took);
is(scalar(() = lines_of($front->{journal}, qr/^tls /)), HOSTS, 'a connection for each host');
cmp_ok($took, '<=', QUARTER + NOISE, 'kB that they take');
is(ask('SELECT pid FROM outbox.workers'), $worker, 'in the same worker');
$node->stop;
done_testing();
