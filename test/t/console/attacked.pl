# Whatever is sent to the console changes nothing, fails in words, and keeps no other user out.
use strict;
use warnings;

use HTTP::Tiny;
use IO::Socket::INET;
use OutboxTest;
use OutboxTest::Console;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Console::skip_without_python();

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $http = HTTP::Tiny->new(max_redirect => 0, timeout => 60);

OutboxTest::Console::roles($node);
endpoint($node, $receiver, 'crm', '/abort/crm', "topics => '{order.*}'");
my $event = emit($node, 'order.created', '{}', "key => 'k'");
endpoint_shows($node, 'crm', 'dead = 1', 'a delivery is dead');

my @screens = map { s/\{endpoint\}/crm/r =~ s/\{event\}/$event/r =~ s/\{replay\}/1/r } OutboxTest::Console::names('SCREENS', 'screens');
my @actions = OutboxTest::Console::names('ACTIONS', 'actions');
my $sure = $http->www_form_urlencode({ endpoint => 'crm', event => $event, from => '2020-01-01', to => '2040-01-01', grace => '0', name => 'new',
		url => $receiver->url('/ok/new'), replay => 1, version => 1, events => '1 day', max_kept => 1, tenant => 't', topics => '*', token => 'x', sure => 1 });

sub changes
{
	return $node->safe_psql('postgres',
		'SELECT (SELECT count(*) FROM outbox.endpoint_audit), (SELECT count(*) FROM outbox.commands), (SELECT count(*) FROM outbox.replays),'
		  . ' (SELECT count(*) FROM outbox.endpoints), (SELECT count(*) FROM outbox.kept_events), (SELECT count(*) FROM outbox.retention_here)');
}

# All that comes back for these bytes, until the console ends the connection
sub raw
{
	my ($console, $bytes) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $console->{port}) or die "connect: $!";
	my $all = '';

	print $socket $bytes;
	while (sysread($socket, my $part, 65536)) { $all .= $part }
	return $all;
}

sub get
{
	my ($console, $path, $host) = @_;
	return raw($console, "GET $path HTTP/1.1\r\nHost: " . ($host // "127.0.0.1:$console->{port}") . "\r\nConnection: close\r\n\r\n");
}

# Anyone at this machine operates: what a page of another site can have a browser send has no token.
my $console = OutboxTest::Console->new($node);
my $before = changes();
foreach my $method (qw(GET HEAD PUT DELETE PATCH OPTIONS TRACE POST))
{
	my %seen;

	foreach my $path (@screens, map { "/do/$_?$sure" } @actions)
	{
		my $answer = $http->request($method, $console->url . $path);
		$seen{ $answer->{status} }++;
		$seen{"$path: a site may read it"}++ if grep { /^access-control/ } keys %{ $answer->{headers} };
	}
	like(join(' ', sort keys %seen), $method =~ /GET|HEAD/ ? qr/^200(?: (?:303|404))*\z/ : $method eq 'POST' ? qr/^403 405\z/ : qr/^405\z/, "$method: " . join(' ', sort keys %seen));
	is(changes(), $before, "$method changes nothing, though it is sure");
}

# Names of the host that only begin like one of the console's
foreach my $host ('evil.example', '127.0.0.1:80@evil.example', '127.0.0.1.evil.example', 'evil.example:127.0.0.1', '[::1].evil.example', '', 'localhost:80/evil', "localhost\tevil")
{
	like(get($console, '/endpoints/', $host), qr{^HTTP/1\.1 (?:421|400) }, "Host: $host");
}
like(get($console, '/', $_), qr{^HTTP/1\.1 200 }, "Host: $_") foreach 'localhost', '[::1]:8432', '127.0.0.1:1';

# Paths that lead elsewhere
foreach my $path ('//evil.example', '//evil.example/', '/\\evil.example/', '/%2f%2fevil.example/', '/static/../app.py', '/static/%2e%2e/app.py', '/static//etc/passwd', '/static/..%2fapp.py',
	'/static/..%5capp.py', '/static/%00', '/endpoint/..%2f..%2fdo%2fpause', '/endpoints/', '/do//evil.example/', "/do/$actions[0]/..", '/%ff%fe', '/endpoint/%ed%a0%80',
	'/endpoint/' . '%e2%80%ae' x 100, '/event/%00', '/delivery/crm/%27', '/dead?before=%00&reason=%27', '/search?q=%00', '/search?before=9999999999999999999&q=a', '/endpoint/crm?of=%c2%b2&going=retry',
	'/endpoint/crm?before=1:2:3', '/endpoint/crm?before=x', '/endpoint/crm?status=x', '/replay/crm/9999999999999999999999', '/tenant?name=' . 'x' x 5000,
	'/search?q=' . 'x' x 30000, '/?' . 'a=&' x 10000, '/do/retry?' . 'pick=crm+x&' x 3000, "/do/replay?endpoint=crm&from=0001-01-01&to=9999-12-31", "/do/seek?endpoint=crm&to=infinity",
	'/do/pause%0aforged:?endpoint=crm', '/endpoint/crm%0d%0aSet-Cookie:%20a=b', 'http://evil.example/', '*')
{
	my $answer = get($console, $path);
	my $shown = length $path > 60 ? substr($path, 0, 60) . '…' : $path;

	like($answer, qr{^HTTP/1\.1 (?:200|303|307|400|403|404|405|409|414|421) }, $shown) or diag(substr($answer, 0, 500));
	my ($head) = split /\r\n\r\n/, $answer;
	unlike($head, qr{^(?:location: (?!/[^/\\]|http://127\.0\.0\.1:$console->{port}/)|set-cookie: a=)}mi, "$shown: it leads nowhere else");
}

# Forms that are none
foreach my $case (
	[ '/do/pause', 'sure=1&' . 'a=b&' x 3000, 'many fields' ],
	[ '/do/pause', 'endpoint=' . 'x' x 1_000_000, 'a megabyte' ],
	[ '/do/pause', "endpoint=crm\x00&token=\xff\xfe", 'bytes that are no text' ],
	[ '/do/pause', '{"endpoint": "crm"}', 'JSON' ],
	[ '/sign-in', 'name=' . 'x' x 1_000_000, 'a megabyte of a name' ],
	[ '/sign-out', 'token=x', 'a sign-out' ])
{
	my ($path, $form, $what) = @$case;
	my $answer = $http->post($console->url . $path, { content => $form, headers => { 'content-type' => 'application/x-www-form-urlencoded' } });
	like($answer->{status}, qr/^(?:303|400|403|409)\z/, "$what: $answer->{status}");
}
foreach my $cookie ('outbox_console=', 'outbox_console=.', 'outbox_console=a.b', 'outbox_console=%00.%00', 'outbox_console_notice=eyJ9.x', 'outbox_console=' . 'x' x 8000, '=; ;;', "outbox_console=\xff.\xfe")
{
	my $answer = raw($console, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: $cookie\r\n\r\n");
	like($answer, qr{^HTTP/1\.1 200 }, 'Cookie: ' . substr($cookie, 0, 40));
}
is(changes(), $before, 'nothing of all this has changed anything');

# Connections that ask for nothing, or slowly, take the place of others for a while only
my @idle = map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $console->{port}) or die "connect: $!" } 1 .. 250;
print { $idle[$_] } "POST /do/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nendpoint=" foreach 0 .. 99;
print { $idle[$_] } "GET / HT" foreach 100 .. 149;
ok(wait_until(sub { $http->get($console->url . '/')->{status} == 200 }, 'a page'), 'a page is there again, while 250 connections are held');

unlike($console->log, qr/Traceback|fault/, 'no fault of the console is in its log');
$console->stop;

# Names of users from a proxy
$console = OutboxTest::Console->new($node, proxies => '["127.0.0.1/32"]', operators => '["jane"]');
foreach my $name ('jane,joe', 'jane joe', '"jane"', "j\xc3\xa4ne", 'JANE', 'jane;', 'x' x 10000, '<b>jane')
{
	my $answer = raw($console, "GET /do/pause?endpoint=crm HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Forwarded-User: $name\r\n\r\n");
	like($answer, qr{^HTTP/1\.1 403 }, 'the user ' . substr($name, 0, 20) . ' is not jane');
	unlike($answer, qr/<b>jane/, 'and its name is text');
}
is($http->get($console->url . '/', { headers => { 'x_forwarded_user' => 'jane' } })->{status}, 403, 'nor is a header that some servers take for it');
$console->stop;

# Lines of the log are the console's own
my $asked = OutboxTest::Console->new($node);
my $page = $http->get($asked->url . '/do/replay?' . $http->www_form_urlencode({ endpoint => 'crm', from => '2020-01-01', to => '2040-01-01' }));
my ($token) = $page->{content} =~ /name="token" value="(\w+)"/;
my ($cookie) = $page->{headers}{'set-cookie'} =~ /\b(outbox_console=[^;]+)/;
$http->post_form($asked->url . '/do/retry', { endpoint => 'crm', topics => "x\e[2J\nforged", since => '2020-01-01', token => $token, sure => 1 }, { headers => { cookie => $cookie } });
ok(wait_until(sub { $asked->log =~ /forged/ }, 'the log'), 'an action is in the log');
unlike($asked->log, qr/^forged|\e/m, 'in one line, with what it hides');
$asked->stop;
done_testing();
