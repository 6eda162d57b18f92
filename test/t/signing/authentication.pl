# An endpoint authenticates itself by basic, bearer, OAuth 2 or a certificate of its own.
# What a token server does is no failure of the receiver.  Judges are oidc-provider and nginx.
use strict;
use warnings;

use IPC::Run ();
use JSON::PP;
use MIME::Base64 ();
use OutboxTest;
use OutboxTest::Clients;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $dir = PostgreSQL::Test::Utils::tempdir('authentication');
mkdir "$dir/secrets" or die "$dir: $!";
my $node = outbox_node('authentication', conf => "outbox.secrets_directory = '$dir/secrets'\n");
my $receiver = OutboxTest::Receiver->new('authentication');
my $n = 0;

sub put
{
	my ($name, $text) = @_;

	append_to_file("$dir/secrets/.new", $text);
	chmod 0600, "$dir/secrets/.new";
	rename "$dir/secrets/.new", "$dir/secrets/$name" or die "$name: $!";
	return;
}

sub create
{
	my ($name, $url, $credentials, $config, $more) = @_;
	my ($c, $k) = map { $_ ? "'" . (JSON::PP->new->encode($_) =~ s/'/''/gr) . "'" : 'NULL' } $config, $credentials;

	utf8::downgrade($_) foreach $c, $k;    # their texts are bytes of UTF-8

	return ask("SELECT outbox.create_endpoint('$name', '$url', topics => '{$name.*}', config => $c, credentials => $k" . ($more ? ", $more" : '') . ')');
}

sub ok_url { return $receiver->url("/ok/$_[0]") }

sub send_one
{
	my ($name) = @_;
	return ask("SELECT outbox.emit('$name.x', '{\"n\": " . ++$n . "}')");
}

sub sent { my ($path) = @_; return grep { $_->{path} eq $path } $receiver->requests }
sub wait_sent { my ($path, $count) = @_; return OutboxTest::Receiver::wait_found($count, "requests to $path", sub { sent($path) }) }
sub authorization { return $_[0]{headers}{authorization} }

# ----- basic and bearer

create('basic', ok_url('basic'), { username => 'Zoë', password => 'a:b c' });
send_one('basic');
is(authorization((wait_sent('/ok/basic', 1))[0]), 'Basic ' . MIME::Base64::encode('Zoë:a:b c', ''), 'basic');

put('bearer', "first.token\n");
create('bearer', ok_url('bearer'), { token => { file => 'bearer' } }, { signature => 'none' });
send_one('bearer');
is(authorization((wait_sent('/ok/bearer', 1))[0]), 'Bearer first.token', 'bearer, from a file');
put('bearer', "second.token\n");
wait_until { send_one('bearer'); grep { authorization($_) eq 'Bearer second.token' } sent('/ok/bearer') } 'the file is read again';
ask(q[SELECT outbox.alter_endpoint('bearer', config => '{"method": "PUT"}')]);
send_one('bearer');
my ($put) = OutboxTest::Receiver::wait_found(1, 'PUT', sub { grep { $_->{method} eq 'PUT' } sent('/ok/bearer') });
is(authorization($put), 'Bearer second.token', 'it stays when other entries of the config change');

# A token that expires: the receiver refuses each event with 401, until somebody writes the next one.
put('expired', "old.token\n");
create('expired', ok_url('expired'), { token => { file => 'expired' } }, undef, "backoff_base => '10 min', backoff_max => '1 h'");
$receiver->control(path => '/ok/expired', behave => '/status/401');
send_one('expired') for 1 .. 40;
endpoint_shows($node, 'expired', "state = 'backing_off' AND pending > 0", 'a token has expired: the endpoint backs off');
$receiver->control(path => '/ok/expired');
put('expired', "new.token\n");
OutboxTest::Receiver::wait_found(1, 'the new token', sub { grep { authorization($_) eq 'Bearer new.token' } sent('/ok/expired') });
endpoint_shows($node, 'expired', "state = 'active'", 'with another file it is probed at once');

# A receiver that repeats what it was sent, in a header and to where the answer is cut off
$receiver->control(path => '/ok/repeats', behave => '/raw?status=422&hex='
	  . unpack('H*', "HTTP/1.1 422 No\r\nX-Sent: Bearer a.token-that-is-secret\r\nContent-Length: 78\r\n\r\n"
		  . substr('not a.token-that-is-secret, nor a.token-that-is-s3cret, but a.token-that-is-secret', 0, 78)));
create('repeats', ok_url('repeats'), { token => 'a.token-that-is-secret' }, undef, 'max_attempts => 1');
send_one('repeats');
ok(wait_sql($node, q[SELECT count(*) = 1 FROM outbox.attempts WHERE endpoint = 'repeats']), 'an answer repeats the credentials');
is(ask(q[SELECT response_headers LIKE '%x-sent: Bearer ' || repeat('*', 22) || '%' AND response_body = format('not %s, nor %s3cret, but %s', repeat('*', 22), repeat('*', 17), repeat('*', 18)) FROM outbox.attempts WHERE endpoint = 'repeats']), 't', 'without them it is kept')
  or diag(ask(q[SELECT response_headers, response_body FROM outbox.attempts WHERE endpoint = 'repeats']));

# ----- OAuth

sub token_url { my ($token, $seconds) = @_; return $receiver->url("/status/200/$token?body={%22access_token%22:%22$token%22,%22expires_in%22:$seconds,%22token_type%22:%22Bearer%22}") }

my $first_token = time;
create('oauth', ok_url('oauth'), { client_secret => 'p%:w' }, { token_url => token_url('t1', 3600), client_id => 'me', scope => 'a b', audience => 'https://a.example' });
send_one('oauth') foreach 1 .. 10;
my @r = wait_sent('/ok/oauth', 10);
is(join(' ', map { authorization($_) } @r), join(' ', ('Bearer t1') x 10), 'OAuth: each request has the token');
my ($t, @more) = sent('/status/200/t1');
is(scalar @more, 0, 'which was asked for once');
is("$t->{method} $t->{headers}{'content-type'} $t->{body}",
	'POST application/x-www-form-urlencoded grant_type=client_credentials&scope=a%20b&audience=https%3A%2F%2Fa.example', 'as RFC 6749 says');
is(authorization($t), 'Basic ' . MIME::Base64::encode('me:p%25%3Aw', ''), 'with the secret of the client');
is(join(' ', grep { /^webhook-|^outbox-/ } keys %{ $t->{headers} }), '', 'and nothing of outbox');

create('form', ok_url('form'), { client_secret => 'p w' }, { token_url => token_url('t2', 3600), client_id => 'me', token_auth => 'post' });
send_one('form');
wait_sent('/ok/form', 1);
($t) = sent('/status/200/t2');
is($t->{body}, 'grant_type=client_credentials&client_id=me&client_secret=p%20w', 'or in the form');
ok(!defined authorization($t), 'then not in the header');

# A token server that is down
$receiver->control(path => '/status/200/t3', behave => '/status/503');
create('down', ok_url('down'), { client_secret => 'x' }, { token_url => token_url('t3', 3600), client_id => 'me' });
send_one('down');
wait_sql($node, q[SELECT state || ' ' || reason FROM outbox.stats WHERE endpoint = 'down'], 'backing_off no token: the token server answered 503');
send_one('basic');
is(scalar(wait_sent('/ok/basic', 2)), 2, 'others go on');
is(ask(q[SELECT count(*) FROM outbox.attempts WHERE endpoint = 'down']), 0, 'no attempt is counted');
is(scalar(sent('/ok/down')), 0, 'and nothing is sent without a token');
$receiver->control(path => '/status/200/t3');
is(authorization((wait_sent('/ok/down', 1))[0]), 'Bearer t3', 'until it is up again');

# What is no token, and no server
foreach (
	[ 'garbage', $receiver->url('/status/200/garbage?body={"access_token":'), 'no token: the answer of the token server has none' ],
	[ 'injects', $receiver->url('/status/200/injects?body={"access_token":"a\r\nX-Evil:+1"}'), 'no token: the answer of the token server has none' ],
	[ 'nobody', 'http://127.0.0.1:9/', qr/^no token: could not connect/ ],
	[ 'forbidden', 'http://localhost.invalid/', qr/^no token: could not resolve host/ ])
{
	my ($name, $url, $words) = @$_;

	create($name, ok_url($name . '_r'), { client_secret => 'x' }, { token_url => $url =~ s/ /%20/gr =~ s/"/%22/gr =~ s/\\/%5C/gr, client_id => 'me' });
	send_one($name);
	my $reason = '';
	wait_until { ($reason = ask("SELECT reason FROM outbox.stats WHERE endpoint = '$name'")) =~ /^no token/ } "$name: no token";
	ref $words ? like($reason, $words, "$name: why") : is($reason, $words, "$name: why");
	is(scalar(sent("/ok/${name}_r")), 0, "$name: nothing is sent");
}

# Token servers of other kinds
foreach (
	[ 'large', '/big-body?bytes=10000000', 'no token: the answer of the token server is too long, or was cut off' ],
	[ 'moved', "/redirect?to=http://169.254.169.254/token", "no token: the token server answered 302" ])
{
	my ($name, $path, $words) = @$_;

	create($name, ok_url($name . '_r'), { client_secret => 'x' }, { token_url => $receiver->url($path), client_id => 'me' });
	send_one($name);
	wait_sql($node, "SELECT reason FROM outbox.stats WHERE endpoint = '$name'", $words);
}

# 600 that hang: they have a bounded part of the worker's descriptors, and nobody waits for them
my $worker = ask(q[SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox worker%']);
my $before = () = glob("/proc/$worker/fd/*");
ask(q[SELECT outbox.create_endpoint('hung' || i, '] . ok_url('hung') . q[', topics => '{hung.*}', timeout => '60 s', credentials => '{"client_secret": "x"}',
	config => '{"token_url": "] . $receiver->url('/hang/token') . q[", "client_id": "me"}') FROM generate_series(1, 600) i]);
ask(q[SELECT outbox.emit('hung.x', '{}')]);
OutboxTest::Receiver::wait_found(500, 'requests for a token', sub { sent('/hang/token') });
send_one('basic');
wait_sent('/ok/basic', 3);
my $hanging = sent('/hang/token');
cmp_ok($hanging, '<=', 512, 'token servers that hang have so many requests at most');
cmp_ok(scalar(() = glob("/proc/$worker/fd/*")), '<', $before + 560, 'and so many connections');
ask(q[SELECT outbox.drop_endpoint('hung' || i, discard => true) FROM generate_series(1, 600) i]);
create('after', ok_url('after'), { client_secret => 'x' }, { token_url => token_url('t5', 3600), client_id => 'me' });
send_one('after');
is(authorization((wait_sent('/ok/after', 1))[0]), 'Bearer t5', 'their places are free again');

# A token that ends early: another one, and the event once more, which counts as one attempt
usleep(100_000) while time < $first_token + 12;    # the least time between two tokens of which the first was good
$receiver->control(path => '/ok/oauth', behave => '/status/401');
my $id = send_one('oauth');
my $tokens = @{ [ OutboxTest::Receiver::wait_found(2, 'tokens', sub { sent('/status/200/t1') }) ] };
OutboxTest::Receiver::wait_found(2, 'refusals', sub { grep { $_->{status} == 401 } sent('/ok/oauth') });
wait_sql($node, "SELECT attempts >= 1 FROM outbox.deliveries WHERE event_id = '$id'", 't');
$receiver->control(path => '/ok/oauth');
wait_sql($node, "SELECT status FROM outbox.deliveries WHERE event_id = '$id'", 'delivered');
my $refusals = grep { $_->{status} == 401 } sent('/ok/oauth');
is(ask("SELECT count(*) FROM outbox.attempts WHERE event_id = '$id' AND status_code = 401"), $refusals, 'each request that the receiver refused is a row');
is(ask("SELECT min(attempt) || ' ' || max(attempt) FROM outbox.attempts WHERE event_id = '$id' AND status_code = 401"), '1 ' . ($refusals - 1), 'and the first of them is no attempt');
is($tokens, 2, 'and one new token was asked for');

# Renewed before its end: nothing ever waits for it
create('short', ok_url('short'), { client_secret => 'x' }, { token_url => token_url('t4', 12), client_id => 'me' });
send_one('short');
wait_until { send_one('short'); sent('/status/200/t4') >= 2 } 'a token that ends soon is renewed';
is(ask(q[SELECT count(*) FROM outbox.attempts WHERE endpoint = 'short' AND error IS NOT NULL]), 0, 'without a failure');

# While outbox.enabled is off, no token server is asked: a copy that was silenced does not log in
ask('ALTER SYSTEM SET outbox.enabled = off');
$node->reload;
ok(wait_sql($node, q[SELECT state = 'disabled' FROM outbox.status]), 'outbox.enabled is off');
create('silent', ok_url('silent'), { client_secret => 'x' }, { token_url => token_url('t6', 3600), client_id => 'me' });
usleep(1_000_000);
is(scalar(sent('/status/200/t6')), 0, 'no token is asked for');
ask('ALTER SYSTEM RESET outbox.enabled');
$node->reload;
wait_sent('/status/200/t6', 1);
send_one('silent');
is(authorization((wait_sent('/ok/silent', 1))[0]), 'Bearer t6', 'until it is on again, also without an event');

# ----- a real token server

SKIP:
{
	my $oidc = OutboxTest::Clients::vendors_program('oidc.mjs');

	diag('NOT TESTED with a real token server: make clients') unless $oidc;
	skip('oidc-provider could not be fetched', 2) unless $oidc;
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open(STDOUT, '>&', \*STDERR);
		exec 'node', $oidc, "$dir/oidc", 3600 or POSIX::_exit(127);
	}
	push @OutboxTest::Receiver::started, $pid;
	wait_until { -e "$dir/oidc" } 'oidc-provider starts';
	chomp(my $port = slurp_file("$dir/oidc"));
	create('oidc', ok_url('oidc'), { client_secret => 's%cret+/' }, { token_url => "http://127.0.0.1:$port/token", client_id => 'shop:1', scope => 'hooks' });
	send_one('oidc');
	my ($bearer) = authorization((wait_sent('/ok/oidc', 1))[0]) =~ /^Bearer (\S+)$/;
	ok($bearer, 'a token of oidc-provider');
	my $basic = MIME::Base64::encode('shop%3A1:s%25cret%2B%2F', '');
	my $answer = qx{python3 -c '
import urllib.request
print(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:$port/token/introspection", b"token=$bearer", {"Authorization": "Basic $basic"})).read().decode())'};
	my $about = decode_json($answer);
	is("$about->{active} $about->{client_id} $about->{scope}", '1 shop:1 hooks', 'which it knows');
}

# ----- certificates of an endpoint's own, judged by nginx

SKIP:
{
	skip('nginx is not installed', 4) unless -x '/usr/sbin/nginx';
	my $names = 'DNS:localhost,IP:127.0.0.1';
	my $port = PostgreSQL::Test::Cluster::get_free_port();

	make_ca($dir, 'private');
	make_cert($dir, 'server', 'private', $names);
	make_ca($dir, 'clients');
	make_cert($dir, 'shop', 'clients', 'DNS:shop');
	make_cert($dir, 'other', 'private', 'DNS:other');
	append_to_file("$dir/nginx.conf", <<"CONF");
pid $dir/nginx.pid;
error_log $dir/nginx.err;
events {}
http {
	log_format dn '\$uri \$status \$ssl_client_verify \$ssl_client_serial \$connection';
	access_log $dir/nginx.log dn;
	client_body_temp_path $dir/body; proxy_temp_path $dir/proxy; fastcgi_temp_path $dir/fastcgi; uwsgi_temp_path $dir/uwsgi; scgi_temp_path $dir/scgi;
	server {
		listen 127.0.0.1:$port ssl;
		ssl_certificate $dir/server.crt;
		ssl_certificate_key $dir/server.key;
		ssl_client_certificate $dir/clients.crt;
		ssl_verify_client on;
		location / { return 204; }
	}
}
CONF
	PostgreSQL::Test::Utils::system_or_bail('nginx', '-c', "$dir/nginx.conf", '-e', "$dir/nginx.err");
	wait_until { -s "$dir/nginx.pid" } 'nginx starts';
	chomp(my $pid = slurp_file("$dir/nginx.pid"));
	push @OutboxTest::Receiver::started, $pid;
	my ($ca, $cert) = map { slurp_file("$dir/$_.crt") } 'private', 'shop';
	put('shop.key', slurp_file("$dir/shop.key"));
	my $url = "https://localhost:$port";

	create('mutual', "$url/mutual", { ca_certificate => $ca, client_certificate => $cert, client_key => { file => 'shop.key' } });
	create('without', "$url/without", { ca_certificate => $ca });
	# Its connection is there, and its certificate is public.
	send_one('mutual');
	wait_sql($node, q[SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'mutual' AND status = 'delivered'], 1);
	create('thief', "$url/thief", { ca_certificate => $ca, client_certificate => $cert, client_key => slurp_file("$dir/other.key") });
	send_one('thief');
	wait_sql($node, q[SELECT last_error IS NOT NULL OR delivered > 0 FROM outbox.stats WHERE endpoint = 'thief'], 't');
	is(scalar(() = slurp_file("$dir/nginx.log") =~ m{^/thief }mg), 0, 'the same certificate without its key has no part in that connection');
	create('stranger', "$url/stranger", { ca_certificate => $ca, client_certificate => slurp_file("$dir/other.crt"), client_key => slurp_file("$dir/other.key") });
	create('unknown', "$url/unknown");
	foreach my $round (1 .. 3) { send_one($_) foreach qw(mutual without stranger unknown) }
	wait_sql($node, q[SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'mutual' AND status = 'delivered'], 4);
	wait_sql($node, qq[SELECT bool_and(last_error LIKE 'the receiver answered 400%') FROM outbox.stats WHERE endpoint IN ('without', 'stranger')], 't');
	wait_sql($node, q[SELECT last_error LIKE 'TLS: %' FROM outbox.stats WHERE endpoint = 'unknown'], 't');
	my @log = map { [split] } split /\n/, slurp_file("$dir/nginx.log");
	my %by;
	push @{ $by{ $_->[0] } }, $_ foreach @log;
	is(join(' ', map { "$_->[1] $_->[2]" } @{ $by{'/mutual'} }), join(' ', ('204 SUCCESS') x 4), 'its certificate and authority are used');
	ok(!(grep { $_->[1] != 400 } @{ $by{'/without'} }, @{ $by{'/stranger'} }), 'and by no other endpoint of that host');
	my %connection = map { $_->[4] => 1 } @{ $by{'/mutual'} };
	ok(!(grep { $connection{ $_->[4] } } @{ $by{'/without'} }, @{ $by{'/stranger'} }), 'nor its connections');
}

# ----- nothing shows them, and what is refused

is(ask(q[SELECT count(*) FROM outbox.endpoints e WHERE e::text ~ 'p%:w|a:b c']), 0, 'no view shows a credential');
my $log = slurp_file($node->logfile);
unlike($log, qr/first\.token|Bearer/, 'nor does the log');
foreach (
	[ 'http://127.0.0.1:9/', '{"username": "a"}', 'NULL', qr/belong together/, 'credentials' ],
	[ 'http://127.0.0.1:9/', '{"username": "a", "password": "b", "token": "c"}', 'NULL', qr/several ways/, 'credentials' ],
	[ 'http://127.0.0.1:9/', '{"username": "a", "password": "b", "token": "c"}', q['{"method": "PUT"}'], qr/several ways/, 'credentials' ],
	[ 'http://127.0.0.1:9/', '{"client_secret": "a"}', 'NULL', qr/OAuth needs/, 'config' ],
	[ 'http://127.0.0.1:9/', '{"client_secret": "a"}', q['{"client_id": "a", "token_url": "http://10.0.0.1/"}'], qr/private/, 'config' ],
	[ 'http://127.0.0.1:9/', '{"client_secret": "a"}', q['{"client_id": "a", "token_url": "ftp://a/"}'], qr/http/, 'config' ],
	[ 'http://127.0.0.1:9/', '{"client_secret": "a"}', q['{"client_id": "a", "token_url": "https://a.example/", "token_auth": "jwt"}'], qr/token_auth/, 'config' ],
	[ 'http://127.0.0.1:9/', '{"ca_certificate": "a"}', 'NULL', qr/need https/, 'credentials' ],
	[ 'https://a.example/', '{"client_key": "a"}', 'NULL', qr/belong together/, 'credentials' ],
	[ 'https://a.example/', '{"key": "a"}', 'NULL', qr/unknown name/, 'credentials' ])
{
	my ($url, $credentials, $config, $expected, $field) = @$_;
	my (undef, undef, $error) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('bad', '$url', credentials => '$credentials', config => $config)");

	like($error, $expected, "refused: $credentials");
	like($error, qr/HINT: /, 'with a hint');
	like($error, qr/^COLUMN NAME:  $field$/m, "the field is $field");
}
my (undef, undef, $error) = $node->psql('postgres', q[SELECT outbox.create_endpoint('bad', 'https://a.example/', credentials => '{"token": "a"}', headers => '{"authorization": "b"}')]);
like($error, qr/the header Authorization and credentials/, 'two of them');
($error) = ($node->psql('postgres', q[SELECT outbox.alter_endpoint('oauth', url => 'http://127.0.0.1:9/other')]))[2];
like($error, qr/credentials/, 'another URL needs the credentials again');
($error) = ($node->psql('postgres', q[SELECT outbox.alter_endpoint('oauth', config => '{"token_url": "http://127.0.0.1:9/", "client_id": "me"}')]))[2];
like($error, qr/credentials/, 'and so does another token server');


# A tenant cannot send to itself what it cannot see
ask(q[SELECT outbox.create_endpoint('given', 'https://partner.example/', tenant => 'acme', credentials => '{"token": {"file": "bearer"}}')]);
($error) = ($node->psql('postgres', q[SELECT outbox.portal_alter_endpoint('acme', 'given', '{"url": "https://own.example/"}')]))[2];
like($error, qr/the credentials of endpoint "given" are not for this URL and config/, 'the portal sends no credential in a file to another URL');

done_testing();
