# A hostile receiver harms its own endpoint at most, never the worker or other endpoints.
# Some endpoints are treated badly, each in another way, while one that is treated well
# gets the same events.  In the end the history of all of them must be clean.
use strict;
use warnings;

use IO::Socket::INET;
use List::Util qw(max);
use OutboxTest;
use POSIX qw(strftime);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $hostile = OutboxTest::Receiver->new('hostile');
my $liar = OutboxTest::Receiver->new('liar');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
my @paths = map { "/ok/hostile$_" } 0 .. 5;

# Bytes as they are, see receiver.py.
sub raw
{
	my ($bytes, %more) = @_;
	$more{endless} = unpack 'H*', $more{endless} if defined $more{endless};
	return join '&', '/raw?hex=' . unpack('H*', $bytes), map { "$_=$more{$_}" } sort keys %more;
}

my $ok = "HTTP/1.1 200 OK\r\n";
my $empty = "Content-Length: 0\r\n\r\n";
my $date = sub { strftime('%a, %d %b %Y %H:%M:%S GMT', gmtime(time + $_[0])) =~ s/ /%20/gr };
my $cut = qr/^the connection was closed before the answer/;
my $malformed = qr/^the answer is not valid HTTP/;
my $too_long = qr/^the header of the answer is too long/;
my $late = qr/^timed out after 0\.8 s/;

# [ what it does, how receiver.py does it, what is to come of it: an error, or
# undef for a delivery, is it cut off ]
my @behaviours = (
	# Slow, or silent
	[ 'takes the request and says nothing', '/hang', $late ],
	[ 'sends a byte of the header now and then', '/drip?ms=300', $late ],
	[ 'stops in the middle of the status line', raw('HTTP/1.1 2'), $late ],
	[ 'stops in the middle of a header line', raw("${ok}Content-Le"), $late ],
	[ 'stops before the empty line', raw("${ok}Content-Length: 0\r\n"), $late ],
	[ 'says 100 Continue and nothing else', raw("HTTP/1.1 100 Continue\r\n\r\n"), $late ],

	# Too much
	[ 'says 100 Continue for ever', '/continue-flood', $too_long ],
	[ 'gives early hints for ever', raw('', endless => "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"), $too_long ],
	[ 'sends header lines for ever', raw($ok, endless => 'X-Filler: ' . 'y' x 80 . "\r\n"), $too_long ],
	[ 'sends short header lines for ever', raw($ok, endless => "a:\r\n"), $too_long ],
	[ 'sends one header line that never ends', raw("${ok}X: ", endless => 'y'), $too_long ],
	[ 'folds a header line for ever', raw("${ok}X: y\r\n", endless => " y\r\n"), $too_long ],
	[ 'sends a status line that never ends', raw('HTTP/1.1 200 ', endless => 'O'), $too_long ],
	[ 'sends a million headers', '/many-headers?n=1000000', $too_long ],
	[ 'sends a body without end', '/endless-body', undef, 1 ],
	[ 'sends a body of 1 GB', raw("${ok}Content-Length: 1073741824\r\n\r\n", endless => 'x', status => 200), undef, 1 ],
	[ 'sends chunks without end', raw("${ok}Transfer-Encoding: chunked\r\n\r\n", endless => "1\r\nx\r\n", status => 200), undef, 1 ],
	[ 'sends one chunk that never ends', raw("${ok}Transfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n", endless => 'x', status => 200), undef, 1 ],
	[ 'sends trailers without end', raw("${ok}Transfer-Encoding: chunked\r\n\r\n0\r\n", endless => "X: y\r\n", status => 200) ],
	[ 'sends a gzip bomb', '/gzip' ],
	[ 'fails with a body without end', raw("HTTP/1.1 500 No\r\n\r\n", endless => 'x', status => 500), qr/answered 500$/ ],

	# Not HTTP
	[ 'sends garbage', '/garbage', $malformed ],
	[ 'speaks HTTP/0.9', '/http09', $malformed ],
	[ 'sends garbage for ever', raw('', endless => "\x00\xff"), $malformed ],
	[ 'speaks TLS', raw("\x15\x03\x01\x00\x02\x02\x28", then => 'close'), $malformed ],
	[ 'speaks HTTP/2', raw("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64", then => 'close'), $malformed ],
	[ 'speaks SSH', raw("SSH-2.0-OpenSSH_9.2\r\n", then => 'close'), $malformed ],
	[ 'has no status', raw("HTTP/1.1 OK\r\n$empty", then => 'close'), qr/./ ],
	[ 'has a status of four digits', raw("HTTP/1.1 2000 OK\r\n$empty", then => 'close'), qr/./ ],
	[ 'has the status 0', raw("HTTP/1.1 000 No\r\n$empty", then => 'close'), qr/./ ],
	[ 'has the status 999', raw("HTTP/1.1 999 No\r\n$empty", status => 999, then => 'close'), qr/answered 999/ ],
	[ 'switches protocols', raw("HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello", then => 'close'), qr/./ ],
	[ 'has a negative length', raw("${ok}Content-Length: -1\r\n\r\n", then => 'close'), qr/./ ],
	[ 'has a length that is no number', raw("${ok}Content-Length: many\r\n\r\n", then => 'close'), qr/./ ],
	[ 'has zero bytes in its header', raw("${ok}X: a\0b\r\n$empty", then => 'close'), qr/./ ],
	[ 'has bytes that are no text in its header', raw("${ok}X: \xff\xfe\x80\r\n$empty", status => 200, then => 'close') ],
	[ 'breaks its chunks', raw("${ok}Transfer-Encoding: chunked\r\n\r\nzz\r\n", status => 200, then => 'close') ],
	[ 'breaks its compression', raw("${ok}Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope", status => 200, then => 'close') ],
	[ 'lies about its length', raw("${ok}Content-Length: 1000\r\n\r\nshort", status => 200, then => 'close') ],

	# Connections
	[ 'closes before the answer', '/close', $cut ],
	[ 'resets before the answer', '/rst', $cut ],
	[ 'closes in the middle of the header', raw("${ok}Content-Le", then => 'close'), $cut ],
	[ 'resets in the middle of the header', raw("${ok}Content-Le", then => 'rst'), $cut ],
	[ 'resets after the answer', '/answer-rst' ],
	[ 'answers and lets the body stall', '/stall-body' ],

	# Elsewhere
	[ 'redirects in a circle', "/redirect?status=307&to=" . $hostile->url('/ok/hostile0'), qr/answered 307, and redirects are not followed/ ],
	[ 'redirects to a file', '/redirect?to=file:///etc/passwd', qr/answered 302, and redirects are not followed/ ],

	# Later
	[ '429, Retry-After in seconds', '/status/429?retry_after=1', qr/answered 429$/ ],
	[ '503, Retry-After as a date', '/status/503?retry_after=' . $date->(3600), qr/answered 503$/ ],
	[ '503, Retry-After in the past', '/status/503?retry_after=' . $date->(-3600), qr/answered 503$/ ],
	[ '503, Retry-After of nonsense', '/status/503?retry_after=soon%FF', qr/answered 503$/ ],
	[ '503, a negative Retry-After', '/status/503?retry_after=-5', qr/answered 503$/ ],
	[ '429, Retry-After of 10^12 s', '/status/429?retry_after=1000000000000', qr/answered 429$/ ],
	[ '429, Retry-After of 10^40 s', '/status/429?retry_after=1' . '0' x 40, qr/answered 429$/ ],
	[ 'webhook-delivery of nonsense', raw("HTTP/1.1 500 No\r\nwebhook-delivery: disable, abort-message\r\nwebhook-delivery:\r\n$empty", status => 500), qr/answered 500$/ ]);

# Their making takes a while, once.
foreach my $large ('/gzip', '/many-headers?n=1000000')
{
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $hostile->{port}) or die "hostile: $!";
	print $socket "POST $large HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
	like(scalar <$socket>, qr/200/, "$large is made");
	close $socket;
}
endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{load.*}'");
foreach my $path (@paths)
{
	endpoint($node, $hostile, substr($path, 4), $path,
		"topics => '{load.*}', timeout => '800 ms', connect_timeout => '800 ms',"
		  . " backoff_base => '50 ms', backoff_max => '200 ms', max_in_flight => 4");
}
my $producer = start_producer($node, $log, rate => 40);
$receiver->wait_delivered(50, path => '/ok/fine');
$hostile->wait_delivered(50, path => $_) foreach @paths;

my $worker = worker_pid($node);

sub memory
{
	return 0 if $ENV{OUTBOX_MEMORY_CHECKER};    # which keeps what was freed
	return private_memory($worker);
}

# They behave again, and are delivered to again.
sub recover
{
	my (@recovering) = @_;
	my %before = map { my $path = $_; ($path => scalar(() = $hostile->delivered(path => $path))) } @recovering;

	$hostile->control(path => $_, behave => '/ok') foreach @recovering;
	my $through = wait_sql($node,
		"SELECT bool_and(state = 'active') FROM outbox.stats WHERE endpoint LIKE 'hostile%'");
	$hostile->wait_delivered($before{$_} + 20, path => $_) foreach @recovering;
	return ok($through, 'all of them are active again');
}

# How often an attempt since then has ended as expected.
sub attempts
{
	my ($path, $since, $error) = @_;
	my $endpoint = substr $path, 4;
	my $condition = defined $error ? "error ~ '" . ($error =~ s/^\(\?\^:|\)$//gr) . "'" : 'status_code = 200 AND error IS NULL';

	return "SELECT count(*) >= 5 FROM outbox.attempts WHERE endpoint = '$endpoint' AND started_at > '$since' AND $condition";
}

my $first = memory();
my $survived = 0;
my @left = @behaviours;
while (my @these = splice @left, 0, scalar @paths)
{
	my $before = memory();
	my $fine = () = $receiver->delivered(path => '/ok/fine');

	$hostile->control(path => $paths[$_], behave => $these[$_][1]) foreach 0 .. $#these;
	my $since = ask('SELECT clock_timestamp()');
	foreach my $i (0 .. $#these)
	{
		my ($name, undef, $error, $cut_off) = @{ $these[$i] };

		my $seen = wait_sql($node, attempts($paths[$i], $since, $error));
		$seen &&= ask("SELECT min(duration_ms) < 600 FROM outbox.attempts WHERE endpoint = 'hostile$i' AND started_at > '$since'") eq 't'
		  if $cut_off;
		if (ok($seen, $name)) { $survived++ }
		else
		{
			diag(ask("SELECT status_code, error, count(*) FROM outbox.attempts WHERE endpoint = 'hostile$i'"
				  . " AND started_at > '$since' GROUP BY 1, 2"));
		}
	}
	$receiver->wait_delivered($fine + 20, path => '/ok/fine');
	my $after = memory();
	cmp_ok($after - $before, '<', 20, sprintf 'memory of the worker: before %.1f MB, after %.1f MB', $before, $after);
	recover(@paths[ 0 .. $#these ]);
	is(worker_pid($node), $worker, 'the worker lives');
}
cmp_ok(memory() - $first, '<', 30, sprintf 'after all of it: %.1f MB at first, now %.1f MB', $first, memory());

# 410 is obeyed
my $path = $paths[0];
$hostile->control(path => $path, behave => '/status/410');
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = 'hostile0'"), '410 disables');
$receiver->wait_delivered((() = $receiver->delivered(path => '/ok/fine')) + 20, path => '/ok/fine');
$hostile->control(path => $path, behave => '/ok');
ask("SELECT outbox.resume_endpoint('hostile0')");
recover($path);
$survived++;

# Answers without a request.  Over HTTP/1.1 a stray answer cannot be told from a real
# one, so a receiver that sends them says 200 to what it has not read.  That harms its
# own events only.  Other endpoints must not see any of it.
my @stray = (
	[ 'refuses, and adds another answer', raw("HTTP/1.1 500 No\r\n$empty$ok$empty") ],
	[ 'refuses, and adds answers without end', raw("HTTP/1.1 500 No\r\n$empty", endless => "$ok$empty") ],
	[ 'accepts, and adds refusals without end', raw("$ok$empty", endless => "HTTP/1.1 500 No\r\n$empty") ]);
endpoint($node, $liar, 'liar', '/ok/liar', "topics => '{load.*}', backoff_base => '10 ms', backoff_max => '50 ms'");
foreach my $stray (@stray)
{
	my ($name, $behave) = @$stray;
	my $before = memory();
	my $fine = () = $receiver->delivered(path => '/ok/fine');

	$liar->control(path => '/ok/liar', behave => $behave);
	$liar->wait_for(5 + (() = $liar->requests(path => '/ok/liar')), path => '/ok/liar');
	$receiver->wait_delivered($fine + 20, path => '/ok/fine');
	my $after = memory();
	$survived++
	  if cmp_ok($after - $before, '<', 20, sprintf '%s: memory of the worker: before %.1f MB, after %.1f MB', $name, $before, $after);
}
ask("SELECT outbox.drop_endpoint('liar', discard => true)");

# A receiver that is gone for a while, under load, is not overrun when it is back.
# While it is away it is probed now and then.  When it is back, it gets one request at
# a time, then two, four ...
my $second = OutboxTest::Receiver->new('second');
endpoint($node, $second, 'away', '/ok/away', "topics => '{load.*}', backoff_base => '200 ms', backoff_max => '1 s'");
$second->wait_delivered(50, path => '/ok/away');
$second->control(down => 1);
ok(wait_sql($node, "SELECT state = 'backing_off' FROM outbox.stats WHERE endpoint = 'away'"), 'away: backing off');
my $away = () = $second->requests(path => '/ok/away');
my $sent = ask("SELECT count(outbox.emit('load.extra', '{}'::jsonb)) FROM generate_series(1, 3000)");
$second->wait_for($away + 6, path => '/ok/away');
my @probes = ($second->requests(path => '/ok/away'))[ $away .. $away + 5 ];
is(max(map { $_->{open} } @probes), 1, 'away: asked one at a time');
my $span = ($probes[5]{mono} - $probes[0]{mono}) / 1e9;
cmp_ok($span, '>=', 0.2, sprintf 'away: six times in %.1f s, with 3,000 events waiting', $span);
my $so_far = () = $second->requests(path => '/ok/away');
$second->control(down => 0);
$second->wait_delivered($so_far + 3000, path => '/ok/away');
my @back = grep { defined $_->{status} } ($second->requests(path => '/ok/away'))[ $so_far .. $so_far + 2999 ];
my @overrun = grep { $_->{open} > 2**(1 + int(($_->{mono} - $back[0]{mono}) / 1e9)) } @back;
is(scalar @overrun, 0, 'back: requests at a time double at most once a second');
$survived++;

stop_producer($producer);
is(ask("SELECT failed_attempts FROM outbox.stats WHERE endpoint = 'fine'"), '0', 'the other endpoint has not noticed anything');
is(ask('SELECT restarts FROM outbox.workers'), '0', 'the worker has lived through all of it');
ask("SELECT outbox.drop_endpoint('away', discard => true)");
check_history($node, $receiver, $log, endpoints => ['/ok/fine'], name => 'nothing lost, nothing twice, all in order');
# An answer that is sent late, or is lost in a reset, means once more.
check_history($node, $hostile, $log, endpoints => \@paths, max_duplicates => 500, name => 'nor where the receiver was hostile');

# Many failures with an answer: each has its row, and few of them the answer.
$receiver->control(path => '/ok/kept', behave => '/fail?rate=0.5&body=' . 'x' x 1024);
endpoint($node, $receiver, 'kept', '/ok/kept', "topics => '{kept}', tenant => 'kept', max_attempts => 1");
ask("SELECT count(outbox.emit('kept', '{}', tenant => 'kept')) FROM generate_series(1, 2000)");
ok(wait_sql($node, "SELECT count(*) >= 2000 FROM outbox.attempts WHERE endpoint = 'kept'"), 'each request has a row');
my $kept = 'sum(octet_length(response_body) + octet_length(response_headers))';
is( ask("SELECT $kept > 0, $kept < 256 * 1024 + 32 * 1024 * (1 + extract(epoch FROM max(started_at) - min(started_at))) FROM outbox.attempts WHERE endpoint = 'kept'"),
	't|t', 'and the bytes of answers have a bound');

shown_in_security($survived, 'hostile behaviours');
$node->stop;
done_testing();
