# Idle connections over TLS take at most a quarter of outbox.worker_memory.
# They stay beside connections in use that take much.
#
# One endpoint gets one host after the other, so connections are all that is added.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use List::Util qw(min);
use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant WARM_UP => 10;
use constant HOSTS => 200; # all of them would take more than twice as much
use constant NAMES => 2400; # in a large certificate, which takes 300 kB in memory
use constant QUARTER => 4 * 1024; # kB
use constant NOISE => 1024;
use constant SLOW => 14;
use constant FAST => 50;

my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'usual', 'authority', 'DNS:*.many.localhost');
make_cert($dir, 'large', 'authority', join ',', 'DNS:*.many.localhost', map { sprintf 'DNS:%03x', $_ } 1 .. NAMES);
my $receiver = OutboxTest::Receiver->new('main');

# With fewer connections there are fewer of libcurl's handles, each of which keeps one.
my $node = outbox_node('main', conf => <<"CONF");
outbox.ssl_ca_file = '$dir/authority.crt'
outbox.worker_memory = '16MB'
outbox.worker_max_connections = 500
CONF

my $worker = ask('SELECT pid FROM outbox.workers');

# kB that belong to the worker alone
sub memory
{
	my ($kb) = slurp_file("/proc/$worker/smaps_rollup") =~ /^Private_Dirty:\s+(\d+) kB/m;
	return $kb;
}

my $n = 0;
my $front;

sub visit
{
	$n++;
	ask("SELECT outbox.alter_endpoint('one', url => 'https://host-$n.many.localhost:$front->{port}/ok/one');"
		  . " SELECT outbox.emit('one', '{}')");
	wait_sql($node, "SELECT delivered >= $n FROM outbox.stats WHERE endpoint = 'one'") or die;
	return;
}

ask("SELECT outbox.create_endpoint('one', 'https://host-1.many.localhost/', topics => '{one}')");
# Fewer with large ones: these would not be too many as usual ones.
foreach ([ 'usual', HOSTS, WARM_UP ], [ 'authorities', 35, 1 ], [ 'large', 35, 1 ])
{
	my ($certificate, $hosts, $kept) = @$_;

	# In a process that has nothing of the others
	ask("SELECT pg_terminate_backend($worker)");
	wait_sql($node, "SELECT count(*) = 1 FROM outbox.workers WHERE pid <> $worker AND state = 'running'");
	$worker = ask('SELECT pid FROM outbox.workers');
	$front = $certificate eq 'authorities' ? start_hostile_tls($certificate, "$dir/usual") :
	  start_front('127.0.0.1:0', $receiver->{port}, cert => "$dir/$certificate.crt", key => "$dir/$certificate.key");
	visit() foreach 1 .. WARM_UP;
	my $before = memory();
	my $took;

	# What is free is returned from time to time, so the least counts.
	foreach (WARM_UP + 1 .. $hosts)
	{
		visit();
		$took = min($took // (), memory() - $before) if $_ > $hosts * 0.75;
	}

	is(scalar(() = lines_of($front->{journal}, qr/^(?:tls |authorities)/)), $hosts, "$certificate: a connection for each host");
	my $sockets = grep { (readlink($_) // '') =~ /^socket:/ } glob "/proc/$worker/fd/*";
	note("$sockets sockets are open, and took $took kB");
	cmp_ok($sockets, '>', $kept, "$certificate: some are kept");
	cmp_ok($took, '<=', QUARTER + NOISE, "$certificate: kB that they take");
	is(ask("SELECT pid FROM outbox.workers"), $worker, 'in the same worker');
}

# Connections in use are no idle ones, however much they take: others keep theirs.
my $slow = $front;
$front = start_front('127.0.0.1:0', $receiver->{port}, cert => "$dir/usual.crt", key => "$dir/usual.key");
ask("SELECT count(outbox.create_endpoint('slow' || n, 'https://slow-' || n || '.many.localhost:$slow->{port}/hang/slow', topics => '{slow}', timeout => '60 s')) FROM generate_series(1, @{[ SLOW ]}) n");
ask("SELECT outbox.emit('slow', '{}')");
OutboxTest::Receiver::wait_found(SLOW, 'requests that hang', sub { grep { $_->{path} eq '/hang/slow' } $receiver->requests });
visit() foreach 1 .. 5;
ask("SELECT outbox.create_endpoint('fast', 'https://fast.many.localhost:$front->{port}/ok/fast', topics => '{fast}')");
my $opened = lines_of($front->{journal}, qr/^tls /);
foreach my $event (1 .. FAST)
{
	ask("SELECT outbox.emit('fast', '{}')");
	$receiver->wait_delivered($event, path => '/ok/fast');
}
$opened = lines_of($front->{journal}, qr/^tls /) - $opened;
note("$opened connections for @{[ FAST ]} events");
cmp_ok($opened, '<=', FAST / 10, 'beside connections in use that take much, an idle one is used again');
is(scalar(grep { $_->{path} eq '/hang/slow' } $receiver->requests), SLOW, 'which are still there');
$node->stop;
done_testing();
