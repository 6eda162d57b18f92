# The words of a hostile broker that refuses harm nothing, and show no password.
# It repeats the password that it was given, with line breaks and bytes that are no UTF-8.
use strict;
use warnings;

use IO::Socket::INET;
use OutboxTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');

# Reads so many bytes, or ends
sub get
{
	my ($socket, $n) = @_;
	my $bytes = '';
	while (length $bytes < $n)
	{
		sysread($socket, $bytes, $n - length $bytes, length $bytes) or POSIX::_exit(0);
	}
	return $bytes;
}

# Kafka's protocol as far as authentication: which requests there are, the mechanism, and
# the answer to the password
sub serve
{
	my ($socket, $words) = @_;
	while (1)
	{
		my $request = get($socket, unpack('N', get($socket, 4)));
		my ($api, $version, $id) = unpack('nnN', $request);
		my $answer = '';
		if ($api == 18)
		{
			my @known = ([ 3, 0, 1 ], [ 17, 0, 1 ], [ 18, 0, 0 ], [ 36, 0, 0 ]);
			$answer = pack('nN', $version > 0 ? 35 : 0, scalar @known) . join('', map { pack('nnn', @$_) } @known);
		}
		elsif ($api == 17) { $answer = pack('nN n/a*', 0, 1, 'PLAIN'); }
		elsif ($api == 36)
		{
			my $said = $words . join('/', split /\0/, substr($request, -60));
			$answer = pack('n n/a* N', 58, $said, 0);
		}
		print $socket pack('N', 4 + length $answer), pack('N', $id), $answer;
		$socket->flush;
	}
}

sub broker
{
	my ($words) = @_;
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 10) or die "socket: $!\n";
	my $pid = fork // die "fork: $!\n";
	if ($pid == 0)
	{
		$SIG{CHLD} = 'IGNORE';
		while (my $socket = $listener->accept)
		{
			serve($socket, $words) if fork == 0;
			close($socket);
		}
		POSIX::_exit(0);
	}
	push @OutboxTest::Receiver::started, $pid;
	return '127.0.0.1:' . $listener->sockport;
}

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\nlog_statement = none\n");
my $password = 'pa55-' . 'w0rd' x 3;

my %broker = (
	bytes => [ broker("no\n\xff\xfe\tLOG:  forged \xe2\x82 "), 'PLAIN', '^not authenticated: no[?]{4}LOG:  forged' ],
	echo => [ broker('no entry for '), 'PLAIN', '^not authenticated: .*not shown' ]);
foreach my $name (sort keys %broker)
{
	my ($address, $sasl, $words) = @{ $broker{$name} };
	my $user = $name eq 'echo' ? 'bob' : 'bobby';
	my $secret = $name eq 'echo' ? $password : 'x' x 80;    # too long to be repeated
	ask("SELECT outbox.create_endpoint('$name', 'kafka://$address/t', '{$name}', config => '{\"sasl\": \"$sasl\"}', credentials => '{\"username\": \"$user\", \"password\": \"$secret\"}')");
	ok(wait_sql($node, "SELECT state = 'backing_off' AND reason ~ '$words' FROM outbox.stats WHERE endpoint = '$name'"), "$name: the broker's words are harmless")
	  or diag(ask("SELECT encode(convert_to(reason, 'UTF8'), 'escape') FROM outbox.stats WHERE endpoint = '$name'"));
}
unlike(ask('SELECT to_jsonb(s) FROM outbox.stats s'), qr/\Q$password\E/, 'no view has the password');
my $log = slurp_file($node->logfile);
$log =~ s/^.*(?:STATEMENT|statement):.*$//mg;
unlike($log, qr/\Q$password\E/, 'nor has the log');
unlike($log, qr/^.?.?\tLOG:  forged/m, 'and no line of it is forged');
like($log, qr/outbox endpoint "bytes" sends nothing: not authenticated: no/, 'the log has the reason');
my $id = emit($node, 'echo', '{}');
ok(wait_sql($node, "SELECT pending = 1 AND failed_attempts = 0 FROM outbox.stats WHERE endpoint = 'echo'"), 'the event waits');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
