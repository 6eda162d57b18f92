# Receivers that mean harm, or act as if.  One endpoint is treated badly in every
# way there is while another one gets the same stream of events; at the end the
# history of both must be clean.
use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use POSIX qw(strftime);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
my $path = '/ok/hostile';

sub ask { return $node->safe_psql('postgres', $_[0]) }

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
# undef for a delivery ]
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
	[ 'sends a million headers', '/many-headers?n=1000000', $too_long, 1 ],
	[ 'sends a body without end', '/endless-body' ],
	[ 'sends a body of 1 GB', raw("${ok}Content-Length: 1073741824\r\n\r\n", endless => 'x', status => 200) ],
	[ 'sends chunks without end', raw("${ok}Transfer-Encoding: chunked\r\n\r\n", endless => "1\r\nx\r\n", status => 200) ],
	[ 'sends one chunk that never ends', raw("${ok}Transfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n", endless => 'x', status => 200) ],
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
	[ 'refuses, and adds an answer that nobody asked for', raw("HTTP/1.1 500 No\r\n$empty$ok$empty", status => 500), qr/answered 500$/ ],
	[ 'refuses, and adds answers without end', raw("HTTP/1.1 500 No\r\n$empty", endless => "$ok$empty", status => 500), qr/answered 500$/ ],

	# Connections
	[ 'closes before the answer', '/close', $cut ],
	[ 'resets before the answer', '/rst', $cut ],
	[ 'closes in the middle of the header', raw("${ok}Content-Le", then => 'close'), $cut ],
	[ 'resets in the middle of the header', raw("${ok}Content-Le", then => 'rst'), $cut ],
	[ 'resets after the answer', '/answer-rst' ],
	[ 'answers and lets the body stall', '/stall-body' ],

	# Elsewhere
	[ 'redirects in a circle', "/redirect?status=307&to=" . $receiver->url($path), qr/answered 307, and redirects are not followed/ ],
	[ 'redirects to a file', '/redirect?to=file:///etc/passwd', qr/answered 302, and redirects are not followed/ ],

	# Later
	[ '429, Retry-After in seconds', '/status/429?retry_after=1', qr/answered 429$/ ],
	[ '503, Retry-After as a date', '/status/503?retry_after=' . $date->(3600), qr/answered 503$/ ],
	[ '503, Retry-After in the past', '/status/503?retry_after=' . $date->(-3600), qr/answered 503$/ ],
	[ '503, Retry-After of nonsense', '/status/503?retry_after=soon%FF%00', qr/answered 503$/ ],
	[ '503, a negative Retry-After', '/status/503?retry_after=-5', qr/answered 503$/ ],
	[ '429, Retry-After of 10^12 s', '/status/429?retry_after=1000000000000', qr/answered 429$/ ],
	[ '429, Retry-After of 10^40 s', '/status/429?retry_after=1' . '0' x 40, qr/answered 429$/ ],
	[ 'webhook-delivery of nonsense', raw("HTTP/1.1 500 No\r\nwebhook-delivery: disable, abort-message\r\nwebhook-delivery:\r\n$empty", status => 500), qr/answered 500$/ ]);

endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{load.*}'");
endpoint($node, $receiver, 'hostile', $path,
	"topics => '{load.*}', timeout => '800 ms', connect_timeout => '800 ms', backoff_base => '10 ms', backoff_max => '50 ms'");
my $producer = start_producer($node, $log, seconds => 500, rate => 100);
$receiver->wait_delivered(50, path => $_) foreach '/ok/fine', $path;

my $worker = worker_pid($node);

sub memory
{
	my ($kb) = slurp_file("/proc/$worker/status") =~ /RssAnon:\s+(\d+) kB/;
	return $kb / 1024;
}

# Behaves again; and is through with what has gathered.
sub recover
{
	my ($name) = @_;
	my $before = () = $receiver->delivered(path => $path);

	$receiver->control(path => $path, behave => '/ok');
	ok( wait_sql(
			$node, "SELECT state = 'active' AND pending + retrying + blocked < 100 FROM outbox.stats WHERE endpoint = 'hostile'"),
		"$name: forgiven");
	$receiver->wait_delivered($before + 20, path => $path);
	return;
}

my $first = memory();
my $survived = 0;
foreach my $behaviour (@behaviours)
{
	my ($name, $behave, $error, $few) = @$behaviour;
	my $least = $few ? 1 : 5;
	my $before = memory();
	my $fine = () = $receiver->delivered(path => '/ok/fine');
	my $condition = defined $error ? "error ~ '" . ($error =~ s/^\(\?\^:|\)$//gr) . "'" : 'status_code = 200 AND error IS NULL';

	my $since = ask('SELECT clock_timestamp()');
	ask("SELECT outbox.alter_endpoint('hostile', max_in_flight => " . ($few ? 1 : 32) . ')');
	$receiver->control(path => $path, behave => $behave);
	my $since_that = ask('SELECT clock_timestamp()');
	my $seen = wait_sql($node,
		"SELECT count(*) >= $least FROM outbox.attempts WHERE endpoint = 'hostile' AND started_at > '$since_that' AND $condition");
	ok($seen, "$name: as expected")
	  or diag(ask("SELECT status_code, error, count(*) FROM outbox.attempts WHERE endpoint = 'hostile' AND started_at > '$since' GROUP BY 1, 2"));
	$receiver->wait_delivered($fine + 20, path => '/ok/fine');
	my $after = memory();
	note(sprintf '%s: memory of the worker before %.1f MB, after %.1f MB', $name, $before, $after);
	cmp_ok($after - $before, '<', 20, "$name: memory");
	is(worker_pid($node), $worker, "$name: the worker lives");
	recover($name);
	$survived++ if $seen;
}
cmp_ok(memory() - $first, '<', 30, sprintf 'after all of it: %.1f MB at first, now %.1f MB', $first, memory());

# 410 is obeyed
$receiver->control(path => $path, behave => '/status/410');
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.stats WHERE endpoint = 'hostile'"), '410 disables');
$receiver->wait_delivered((() = $receiver->delivered(path => '/ok/fine')) + 20, path => '/ok/fine');
$receiver->control(path => $path, behave => '/ok');
ask("SELECT outbox.resume_endpoint('hostile')");
recover('410');
$survived++;

# Gone for a while, under load, and back: nobody is overrun.  While it is away
# it is asked now and then; when it is back, a request at a time, two, four ...
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
check_history($node, $receiver, $log, endpoints => [ '/ok/fine', $path ], name => 'nothing lost, nothing twice, all in order');

note("hostile behaviours survived: $survived");
ok(slurp_file("$top/README.md") =~ /\b$survived hostile behaviours\b/, 'as the README says');
$node->stop;
done_testing();
