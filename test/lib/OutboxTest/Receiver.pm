package OutboxTest::Receiver;

# A receiver process (test/tools/receiver.py) and its journal.

use strict;
use warnings;

use Carp;
use IO::Socket::INET;
use JSON::PP ();
use List::Util qw(max min);
use POSIX ();
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time usleep);
use Test::More;

our @started;    # processes to end when the test ends

# JSON::XS reads a journal, or plans, a hundred times as fast as Perl's own module.
our $decode = eval { require JSON::XS; \&JSON::XS::decode_json } || \&JSON::PP::decode_json;

END
{
	# Must not change the exit status of the test.
	my $status = $?;
	kill 'TERM', @started if @started;
	kill 'CONT', @started if @started;    # one that is stopped would not end
	waitpid($_, 0) foreach @started;
	$? = $status;
}

# Options: fsync => 1, brief => 1, ipv6 => 1 (it listens on ::1), seed => n
sub new
{
	my ($class, $name, %option) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir("receiver_$name");
	my $self = bless {
		journal => "$dir/journal",
		port_file => "$dir/port",
		port => 0,
		option => \%option,
		secrets => [],
		offset => 0,
		rest => '',
		seen => [],
		by_number => {},
		with => { path => {}, id => {} },
	}, $class;

	$self->start;
	return $self;
}

sub start
{
	my ($self) = @_;
	my @command = (
		'python3', "$OutboxTest::top/test/tools/receiver.py", '--journal',
		$self->{journal}, '--port-file', $self->{port_file}, '--port',
		$self->{port}, '--seed', $self->{option}{seed} // 1,
		map { $self->{option}{$_} ? "--$_" : () } qw(fsync brief ipv6));

	push @command, '--secret', $_ foreach @{ $self->{secrets} };
	unlink $self->{port_file};
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open(STDOUT, '>&', \*STDERR);
		exec @command or POSIX::_exit(127);
	}
	$self->{pid} = $pid;
	push @started, $pid;
	my $end = time + 30;
	until (-s $self->{port_file})
	{
		croak 'the receiver does not start' if time > $end;
		usleep(10_000);
	}
	chomp($self->{port} =
		  PostgreSQL::Test::Utils::slurp_file($self->{port_file}));
	return;
}

# Ends the process.  start() brings it back on the same port with the same
# journal.  The signal is TERM unless given.
sub stop
{
	my ($self, $signal) = @_;

	kill $signal // 'TERM', $self->{pid};
	waitpid($self->{pid}, 0);
	@started = grep { $_ != $self->{pid} } @started;
	return;
}

sub url
{
	my ($self, $path) = @_;
	my $host = $self->{option}{ipv6} ? '[::1]' : '127.0.0.1';

	return "http://$host:$self->{port}$path";
}

# A command to the receiver, see receiver.py.  It is done when this returns.
sub control
{
	my ($self, %query) = @_;
	my $text = join '&',
	  map { my $v = $query{$_}; $v =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ge; "$_=$v" }
	  sort keys %query;
	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $self->{port},
		Timeout => 30) or croak "no receiver on port $self->{port}: $!";

	if ($query{secret})
	{
		# It must survive a restart of the receiver.
		push @{ $self->{secrets} }, "$query{path}=$query{secret}";
	}
	print $socket "POST /control?$text HTTP/1.1\r\nHost: localhost\r\n"
	  . "Content-Length: 0\r\n\r\n";
	my $answer = <$socket> // '';
	croak "the receiver answered: $answer" unless $answer =~ / 200 /;
	close $socket;
	return;
}

# All requests so far, in the order of their arrival.  A late answer is merged
# into its request (status, answered, failed).
sub requests
{
	my ($self, %match) = @_;

	if (-e $self->{journal})
	{
		open(my $fh, '<:raw', $self->{journal}) or croak "journal: $!";
		seek($fh, $self->{offset}, 0);
		local $/;
		my $data = $self->{rest} . (<$fh> // '');
		$self->{offset} = tell($fh);
		close $fh;
		$data =~ s/([^\n]*)\z//;
		$self->{rest} = $1;
		foreach my $line (split /\n/, $data)
		{
			my $entry = eval { $decode->($line) } or next;
			my ($incarnation) = split /\./, $entry->{round};
			if (defined $entry->{answer})
			{
				my $request =
				  $self->{by_number}{"$incarnation.$entry->{answer}"};
				$request->{status} = $entry->{status};
				$request->{answered} = $entry->{mono};
				$request->{failed} = $entry->{failed} if $entry->{failed};
			}
			else
			{
				$entry->{topic} = $entry->{headers}{'outbox-topic'};
				push @{ $self->{seen} }, $entry;
				push @{ $self->{with}{$_}{ $entry->{$_} // '' } }, $entry foreach qw(path id);
				$self->{by_number}{"$incarnation.$entry->{request}"} = $entry;
			}
		}
	}

	# A test asks again and again, and mostly for one path or one event.
	my ($by) = grep { exists $match{$_} } qw(id path);
	my $among = $by ? $self->{with}{$by}{ delete $match{$by} // '' } // [] : $self->{seen};
	return grep {
		my $entry = $_;
		!grep { ($entry->{$_} // '') ne ($match{$_} // '') } keys %match
	} @$among;
}

# Those that were answered with 2xx.
sub delivered
{
	my ($self, %match) = @_;
	return grep { defined $_->{status} && int($_->{status} / 100) == 2 }
	  $self->requests(%match);
}

# The events of all requests, in the order of their arrival: the members of a
# batch, or the one event.  "request" is the entry it came with; "delivered": it
# was answered with 2xx, and neither it nor an earlier one of its key was named.
sub events
{
	my ($self, %match) = @_;
	my @events;

	foreach my $request ($self->requests)
	{
		my $good = defined $request->{status} && int($request->{status} / 100) == 2;
		my %named = map { $_ => 1 } @{ $request->{failed} // [] };
		my %stuck;

		if (!$request->{batch})
		{
			push @events, { %$request, request => $request, delivered => $good ? 1 : 0 };
			next;
		}
		foreach my $member (@{ $request->{batch} })
		{
			my $key = $member->{key};
			my $bad = $named{ $member->{id} } || (defined $key && $stuck{$key});

			$stuck{$key} = 1 if $bad && defined $key;
			push @events,
			  { %$member, path => $request->{path}, request => $request,
				delivered => $good && !$bad ? 1 : 0 };
		}
	}
	return grep {
		my $event = $_;
		!grep { ($event->{$_} // '') ne ($match{$_} // '') } keys %match
	} @events;
}

# Waits until that many are found, and returns them all.  Reading a long journal can
# take longer than the wait on a busy machine, so it is read once more after the end.
# Where it takes long, it is read less often.
sub wait_found
{
	my ($n, $what, $find) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	while (1)
	{
		my $begun = time;
		my $last = $begun > $end;
		my @found = $find->();
		return @found if @found >= $n;
		if ($last)
		{
			fail("in time: $n $what, not only " . @found);
			return @found;
		}
		usleep(1_000_000 * min(max(2 * (time - $begun), 0.01), 0.2));
	}
}

# Waits until that many events, requests, deliveries match; returns all that do.
sub wait_events
{
	my ($self, $n, %match) = @_;
	return wait_found($n, 'events', sub { return $self->events(%match) });
}

sub wait_for
{
	my ($self, $n, %match) = @_;
	return wait_found($n, 'requests', sub { return $self->requests(%match) });
}

sub wait_delivered
{
	my ($self, $n, %match) = @_;
	return wait_found($n, 'deliveries', sub { return $self->delivered(%match) });
}

# Waits for further requests (of a path) that are not refused.  Under load: it
# reads no more than what is new, and decodes nothing.
sub wait_new
{
	my ($self, $n, $path) = @_;
	my $offset = -s $self->{journal} // 0;
	my $wanted = defined $path ? quotemeta $path : '[^"]*';
	my @found;

	open(my $fh, '<:raw', $self->{journal}) or croak "journal: $!";
	seek($fh, $offset, 0);
	my $look = sub {
		seek($fh, 0, 1);
		while (my $line = <$fh>)
		{
			push @found, 1 if $line =~ /"path": "$wanted".*"status": (?:2|null)/;
		}
		return @found;
	};
	return wait_found($n, 'further requests', $look) >= $n;
}

1;
