package OutboxTest::PgBouncer;

# PgBouncer before a server, as doc/orm.md configures it: it gives out connections by transaction.

use strict;
use warnings;

use IPC::Run ();
use OutboxTest;
use OutboxTest::Receiver;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

sub installed { return (grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin')[0] }

# Starts it for this role, and returns its port.
sub start
{
	my ($node, $role) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('pgbouncer');
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my ($conf) = slurp_file("$top/doc/orm.md") =~ /^```ini\n(.*?)^```/ms;
	my $host = $node->host;

	$conf =~ s/^shop = .*/"postgres = host=$host port=" . $node->port/me;
	append_to_file("$dir/users", qq("$role" ""\n));
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
		exec installed(), "$dir/ini" or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	wait_until { system("psql -XAtq -h 127.0.0.1 -p $port -U $role -c 'SELECT 1' postgres > /dev/null 2>&1") == 0 } 'PgBouncer answers';

	# One client's transactions go to several connections of the server.
	wait_until
	{
		IPC::Run::run([ qw(psql -XAtq -h 127.0.0.1 -U), $role, '-p', $port, 'postgres' ],
			'<', \("SELECT pg_backend_pid();\n" x 9), '>', \my $out);
		my %pids = map { $_ => 1 } split /\n/, $out;
		keys %pids > 1;
	}
	'a client gets several connections';
	return $port;
}

1;
