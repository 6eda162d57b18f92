# The certificate authorities are loaded once for many connections, and not for each of them.
#
# The file is taken away after the first connection: the next one, to another receiver,
# has to do with what was loaded for the first.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# For how long libcurl is told to keep them (OUTBOX_CA_AGE_MAX), less what a check takes
use constant KEPT => 45;

my $libcurl = `curl-config --version 2>/dev/null` // '';
my $backends = `curl-config --ssl-backends 2>/dev/null` // '';
my ($major, $minor) = $libcurl =~ /(\d+)[.](\d+)/;
plan skip_all => 'only libcurl 7.87 or newer with OpenSSL keeps them'
  if defined $major && ($major < 7 || ($major == 7 && $minor < 87) || $backends !~ /OpenSSL/i);

my $dir = PostgreSQL::Test::Utils::tempdir();
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost');
my $receiver = OutboxTest::Receiver->new('main');
my %front = map { $_ => start_front('127.0.0.1:0', $receiver->{port}, cert => "$dir/good.crt", key => "$dir/good.key") }
  qw(first second third);

# So few connections that all hosts share one of libcurl's multi handles, which keeps
# the authorities
my $node = outbox_node('main', conf => "outbox.ssl_ca_file = '$dir/authority.crt'\noutbox.worker_max_connections = 100\n");

sub outcome
{
	my ($name) = @_;

	ask("SELECT outbox.create_endpoint('$name', 'https://localhost:$front{$name}{port}/ok/$name', topics => '{$name}', max_attempts => 1, connect_timeout => '1 min', timeout => '1 min')");
	my $id = emit($node, $name, '{}');
	wait_sql($node, "SELECT status IN ('delivered', 'dead') FROM outbox.deliveries WHERE event_id = '$id'");
	return ask("SELECT CASE status WHEN 'delivered' THEN status ELSE last_error END FROM outbox.deliveries WHERE event_id = '$id'");
}

my $begun = time;
is(outcome('first'), 'delivered', 'the file is loaded');
rename "$dir/authority.crt", "$dir/away.crt" or die "rename: $!";
my $got = outcome('second');

SKIP:
{
	skip('the machine was too slow: they may be loaded again by now', 1) if time - $begun > KEPT;
	is($got, 'delivered', 'another connection does not load it again');
}

# A reload ends that.  The worker hears of it a moment later.
$node->reload;
my $n = 0;
wait_until
{
	$n++;
	$front{"again$n"} = $front{third};
	outcome("again$n") =~ /^TLS: /
} 'a reload: the file is needed, and it is not there';
pass('after a reload it is loaded');
$node->stop;
done_testing();
