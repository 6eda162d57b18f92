package OutboxTest::Conformance;

# The receiver of test/conformance: built on the receivers' own libraries.

use strict;
use warnings;

use Carp;
use IO::Socket::INET;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time usleep);
use Test::More;

use OutboxTest::Receiver;

# Why the receiver cannot be run here.  Nothing if it can.
sub missing
{
	my $dir = "$OutboxTest::top/test/conformance";
	my $version = qx{node --version 2>&1};

	return 'node is not installed' if $? != 0;
	return "node $version is too old, 18 is needed"
	  if $version !~ /^v(\d+)/ || $1 < 18;
	foreach my $package (qw(standardwebhooks svix cloudevents))
	{
		return "$package is not installed: npm ci in test/conformance"
		  unless -d "$dir/node_modules/$package";
	}
	return '';
}

# Ends the test, visibly, where the libraries cannot be had.
sub skip_if_missing
{
	my $missing = missing();

	return unless $missing;
	diag("NOT TESTED against the receivers' libraries: $missing");
	plan(skip_all => $missing);
	return;
}

sub new
{
	my ($class) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('conformance');
	my $self = bless {}, $class;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open(STDOUT, '>&', \*STDERR);
		exec 'node', "$OutboxTest::top/test/conformance/receiver.js", "$dir/port"
		  or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	my $end = time + 60;
	until (-s "$dir/port")
	{
		croak 'the receiver does not start' if time > $end;
		usleep(10_000);
	}
	chomp($self->{port} = PostgreSQL::Test::Utils::slurp_file("$dir/port"));
	return $self;
}

sub url
{
	my ($self, $path) = @_;
	return "http://127.0.0.1:$self->{port}$path";
}

sub ask
{
	my ($self, $method, $path, $body) = @_;
	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $self->{port},
		Timeout => 30) or croak "no receiver on port $self->{port}: $!";

	print $socket "$method $path HTTP/1.0\r\nContent-Length: "
	  . length($body) . "\r\n\r\n$body";
	local $/;
	my $answer = <$socket>;
	croak "the receiver answered: $answer" unless $answer =~ m{^HTTP/1.\d 200 };
	$answer =~ s/.*?\r\n\r\n//s;
	return $answer;
}

# What to expect at a path from now on, see receiver.js.
sub expect
{
	my ($self, $path, %expected) = @_;
	$self->ask('POST', '/control',
		encode_json({ path => $path, %expected }));
	return;
}

sub report
{
	my ($self) = @_;
	return decode_json($self->ask('GET', '/report', ''));
}

# The requests to a path (or, without one, all), once there are that many.
sub wait_for
{
	my ($self, $n, $path) = @_;
	return OutboxTest::Receiver::wait_found($n, 'requests',
		sub {
			return grep { !defined $path || $_->{path} eq $path } @{ $self->report->{requests} };
		});
}

1;
