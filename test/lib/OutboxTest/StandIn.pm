# What tests against stand-ins of AWS share: the stand-in's process, and boto3's client.
package OutboxTest::StandIn;

use strict;
use warnings;

use Exporter 'import';
use IO::Handle;
use IO::Socket::INET;
use IPC::Open2;
use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(start_stand_in start_moto start_client);

# Runs a command that listens at a port, and waits until it does.  Its output is in a file of the directory.
sub start_stand_in
{
	my ($name, $dir, $port, $path, @command) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open(STDOUT, '>', "$dir/$name");
		open(STDERR, '>&', \*STDOUT);
		exec @command or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	ok(wait_until(sub { (IO::Socket::INET->new("127.0.0.1:$port") // return 0)->print("GET $path HTTP/1.0\r\n\r\n") }, "$name listens", 120), "$name listens")
	  or diag(slurp_file("$dir/$name"));
	return;
}

# Returns moto's port, which is below those of outgoing connections, or one of these could take it.
sub start_moto
{
	my ($dir) = @_;
	my ($port, $held) = (20000 + $$ % 10000);

	$port++ until $held = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1, ReuseAddr => 1);
	close $held;
	start_stand_in('moto', $dir, $port, '/moto-api/', '/usr/bin/python3', '-m', 'moto.server', '-H', '127.0.0.1', '-p', $port);
	return $port;
}

# Returns a function that has the client carry out a command, and returns its answer.
sub start_client
{
	my (@arguments) = @_;

	push @OutboxTest::Receiver::started, open2(my $out, my $in, '/usr/bin/python3', "$top/test/aws/client.py", @arguments);
	return sub {
		my ($command) = @_;
		print $in "$command\n";
		$in->flush;
		my $line = <$out> // die "the client has ended\n";
		return JSON::PP->new->allow_nonref->utf8->decode($line);
	};
}

1;
