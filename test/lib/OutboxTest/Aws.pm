package OutboxTest::Aws;

# The stand-in of AWS (test/aws/fake.py) beside a test, and what it was sent.

use strict;
use warnings;

use Digest::MD5 qw(md5_hex);
use Encode qw(encode);
use IO::Handle;
use IPC::Open2;
use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

our $account = '123456789012';

# A key that the stand-in knows, as credentials in SQL
our $keys = q('{"access_key_id": "AKIDEXAMPLE", "secret_access_key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}');

my $json = JSON::PP->new->utf8->canonical;

# Why the sink is not there.  Nothing if it is.
sub missing
{
	return is_installed('outbox_aws') ? '' : 'outbox_aws was not built: it needs libcurl 7.87';
}

sub needed
{
	my $missing = missing();
	plan skip_all => $missing if $missing;
	return;
}

# One that runs.  Options: journal, a file that several may share; pem, for TLS
sub new
{
	my ($class, %arg) = @_;
	my $self = bless { journal => $arg{journal} // PostgreSQL::Test::Utils::tempdir('aws') . '/journal', pem => $arg{pem}, port => 0, read => 0, requests => [] }, $class;

	$self->start;
	return $self;
}

sub start
{
	my ($self) = @_;

	$self->{pid} = open2($self->{out}, $self->{in}, 'python3', "$top/test/aws/fake.py", $self->{journal}, $self->{port}, $self->{pem} // ());
	push @OutboxTest::Receiver::started, $self->{pid};
	chomp($self->{port} = readline $self->{out});
	return;
}

# KILL, STOP or CONT
sub signal
{
	my ($self, $signal) = @_;

	kill $signal, $self->{pid};
	return if $signal ne 'KILL';
	waitpid($self->{pid}, 0);
	@OutboxTest::Receiver::started = grep { $_ != $self->{pid} } @OutboxTest::Receiver::started;
	return;
}

# SQL that makes an endpoint for a resource in it: 'sqs', 'orders.fifo'.  The rest is SQL.
sub create_endpoint
{
	my ($self, $name, $service, $resource, $rest) = @_;

	return "outbox.create_endpoint('$name', 'arn:aws:$service:eu-central-1:$account:$resource', config => '{\"endpoint_url\": \"http://127.0.0.1:$self->{port}\"}', credentials => $keys, format => 'raw'"
	  . ($rest ? ", $rest)" : ')');
}

# Rules, resources that are missing, secrets: as fake.py says
sub tell
{
	my ($self, %told) = @_;

	$self->{in}->print($json->encode(\%told) . "\n");
	$self->{in}->flush;
	return readline($self->{out}) eq "ok\n";
}

# The requests that reached the resource, or all
sub requests
{
	my ($self, $name) = @_;

	open(my $file, '<', $self->{journal}) or return;
	seek $file, $self->{read}, 0;
	while (my $line = <$file>)
	{
		last unless $line =~ /\n$/;
		$self->{read} += length $line;

		# Of one that was killed a part of a line may be left.
		push @{ $self->{requests} }, grep { defined } eval { $json->decode($line) };
	}
	return grep { !$name || $_->{name} eq $name } @{ $self->{requests} };
}

# The entries that were stored in the resource, in their order
sub stored
{
	my ($self, $name) = @_;
	my @stored;

	foreach my $r (grep { $_->{status} == 200 && !$_->{rule}{raw} } $self->requests($name))
	{
		push @stored, map { $r->{failed}[$_] ? () : { %{ $r->{entries}[$_] }, wall => $r->{wall} } } 0 .. $#{ $r->{entries} };
	}
	return @stored;
}

# Judges what is in a FIFO queue by what a producer has emitted for its endpoint, as
# check_history does of a receiver.
sub check
{
	my ($self, $node, $log, $name, %option) = @_;
	my $n = 0;

	wait_settled($node, $option{dbname} // 'postgres') or fail("$name: everything is delivered in time");
	my $journal = "$log.$name";
	append_to_file("$journal.new", join '',
		map {
			sprintf qq({"path": "/%s", "id": "%s", "round": "0.%d", "status": 200, "wall": %.3f, "sha256": "%s", "headers": {}}\n),
			$name, $_->{MessageDeduplicationId}, ++$n, $_->{wall}, md5_hex(encode('UTF-8', $_->{MessageBody}))
		} $self->stored($name));
	rename "$journal.new", $journal or die "$journal: $!";
	return check_history($node, { journal => $journal }, $log, endpoints => ["/$name"], %option);
}

1;
