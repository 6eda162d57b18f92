# The programs of doc/orm.md emit through PgBouncer, which gives out connections by transaction.
# "make clients" fetches what they need, and runs them.
use strict;
use warnings;

use IPC::Run ();
use OutboxTest;
use OutboxTest::Clients;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my %wanted = map { $_ => 1 } split ' ', $ENV{OUTBOX_TEST_CLIENTS} // '';
plan skip_all => 'takes a minute and what registries have: "make clients" runs it' unless $wanted{pgbouncer};
my ($bouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
unless ($bouncer)
{
	diag('NOT TESTED: emitting through PgBouncer: it is not installed');
	plan skip_all => 'PgBouncer is not installed';
}

my $node = OutboxTest::Clients::server();
my $receiver = OutboxTest::Receiver->new('main');
endpoint($node, $receiver, 'all', '/ok/all');

my $dir = PostgreSQL::Test::Utils::tempdir('pgbouncer');
my $port = PostgreSQL::Test::Cluster::get_free_port();
my ($conf) = slurp_file("$top/doc/orm.md") =~ /^```ini\n(.*?)^```/ms;
$conf =~ s/^shop = .*/"postgres = host=127.0.0.1 port=" . $node->port/me;
append_to_file("$dir/users", qq("app" ""\n));
append_to_file("$dir/ini", $conf . <<"INI");
listen_addr = 127.0.0.1
listen_port = $port
auth_type = trust
auth_file = $dir/users
logfile = $dir/log
unix_socket_dir =
min_pool_size = 3
server_round_robin = 1
INI
my $pid = fork // die "fork: $!";
if ($pid == 0)
{
	open(STDOUT, '>', "$dir/out");
	open(STDERR, '>&', \*STDOUT);
	exec $bouncer, "$dir/ini" or POSIX::_exit(127);
}
push @OutboxTest::Receiver::started, $pid;
wait_until { system("psql -XAtq -h 127.0.0.1 -p $port -U app -c 'SELECT 1' postgres > /dev/null 2>&1") == 0 } 'PgBouncer answers';

# One client's transactions go to several connections of the server.
wait_until
{
	IPC::Run::run([ qw(psql -XAtq -h 127.0.0.1 -U app -p), $port, 'postgres' ],
		'<', \("SELECT pg_backend_pid();\n" x 9), '>', \my $out);
	my %pids = map { $_ => 1 } split /\n/, $out;
	keys %pids > 1;
}
'a client gets several connections';

# Twice, because a name of a prepared statement that is left over would be in the way then
my $ran = 0;
foreach my $name (sort keys %OutboxTest::Clients::programs)
{
	next if $OutboxTest::Clients::programs{$name}{prepares};
	my $missing = OutboxTest::Clients::missing($OutboxTest::Clients::programs{$name}{language});
	if ($missing)
	{
		diag("NOT TESTED: $name through PgBouncer: $missing");
		next;
	}
	OutboxTest::Clients::run_shop($node, $name, $port, PGBOUNCER => 1) foreach 1 .. 2;
	$ran++;
}
cmp_ok($ran, '>', 0, 'some program was run');
wait_settled($node);
is( $node->safe_psql('postgres', "SELECT count(*) FROM outbox.deliveries WHERE status = 'delivered'"),
	$node->safe_psql('postgres', 'SELECT count(*) FROM outbox.events'),
	'all of it is delivered');

kill 'TERM', $pid;
waitpid($pid, 0);
$node->stop;
done_testing();
