# One delivery is shown whole: each request with its cause, the times of its parts, and the answer.
use strict;
use warnings;

use JSON::PP;
use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.settle_interval = '1 ms'\nautovacuum = off\n");
my $receiver = OutboxTest::Receiver->new('main');
my $other = OutboxTest::Receiver->new('other');
my $quick = "backoff_base => '1 ms', backoff_max => '2 ms'";

sub ask
{
	my ($sql, $role) = @_;
	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', $role // 'postgres' ]);
}

sub delivery
{
	my ($endpoint, $event) = @_;
	return decode_json(ask("SELECT outbox.portal_delivery('acme', '$endpoint', '$event')", 'portal'));
}

# An event that only this endpoint gets, and its delivery when it has that status
sub delivered
{
	my ($endpoint, $status) = @_;
	my $event = ask("SELECT outbox.emit('$endpoint', '{\"n\": 1}', tenant => 'acme')");

	ok(wait_sql($node, "SELECT status = '$status' FROM outbox.deliveries_page('$endpoint', event => '$event')"), "$endpoint: $status");
	return ($event, delivery($endpoint, $event));
}

sub answers
{
	my ($path, $head, $body) = @_;
	$other->control(path => $path, behave => '/raw?then=close&hex=' . unpack('H*', "$head\r\n\r\n$body"));
	return;
}

ask("CREATE ROLE portal LOGIN; SELECT outbox.grant_to('portal', 'portal')");
endpoint($node, $receiver, $_, "/ok/$_", "topics => '{$_}', tenant => 'acme', $quick") foreach qw(plain some);
endpoint($node, $other, 'full', '/ok/full', "topics => '{full}', tenant => 'acme', log_attempts => 'answers', max_attempts => 1, $quick");

# --- What of an answer is kept

my ($event, $d) = delivered('plain', 'delivered');
is_deeply([ map { $_->{cause} } @{ $d->{attempts} } ], ['first'], 'one request');
is_deeply([ @{ $d->{attempts}[0] }{qw(status_code response_headers response_body first_byte_ms)} ],
	[ 200, undef, undef, undef ], 'by default only the status of a success is kept');

answers('/ok/full', "HTTP/1.1 201 Created\r\nX-Request-Id: r-1\r\nVia: a\r\nvia: b\r\nSet-Cookie: session=secret\r\nContent-Length: 7", 'thanks!');
($event, $d) = delivered('full', 'delivered');
my $attempt = $d->{attempts}[0];
is_deeply($attempt->{response_headers},
	{ 'x-request-id' => 'r-1', via => 'a, b', 'set-cookie' => '(left out)', 'content-length' => '7' }, 'headers of a success');
is($attempt->{response_body}, 'thanks!', 'its body');
is($attempt->{status_code}, 201, 'its status');
is($attempt->{lookup_ms}, undef, 'no name was looked up');
is($attempt->{tls_ms}, undef, 'nor was there TLS');
cmp_ok($attempt->{connect_ms}, '>', 0, 'time to connect');
cmp_ok($attempt->{first_byte_ms}, '>', 0, 'time to the first byte');
cmp_ok($attempt->{connect_ms} + $attempt->{first_byte_ms}, '<=', $attempt->{duration_ms} + 1, 'the parts are no longer than the whole');
is(ask("SELECT response_headers ~ '^x-request-id: r-1\\nvia: a\\n' AND response_body = 'thanks!' AND cause = 'first' AND first_byte_ms > 0"
	  . " FROM outbox.attempts WHERE endpoint = 'full'"), 't', 'the operator sees the same');

$other->control(path => '/ok/full', behave => '/slow?ms=300');
($event, $d) = delivered('full', 'delivered');
$other->control(path => '/ok/full', behave => '/slow?ms=300');
($event, $d) = delivered('full', 'delivered');
is($d->{attempts}[0]{connect_ms}, undef, 'a connection that is used again took no time to connect');
cmp_ok($d->{attempts}[0]{first_byte_ms}, '>=', 290, 'and the first byte is late');

# --- Causes

$receiver->control(path => '/ok/some', behave => '/flaky?first=2&status=503');
($event, $d) = delivered('some', 'delivered');
is_deeply([ map { $_->{cause} } @{ $d->{attempts} } ], [qw(retry retry first)], 'retries');
is($d->{attempts}[1]{status_code}, 503, 'a failure has its status');
is($d->{attempts}[1]{response_headers}{'content-length'}, 0, 'and headers');
$receiver->control(path => '/ok/some', behave => '/ok');
ask("SELECT outbox.portal_retry('acme', 'some', '$event')", 'portal');
ok(wait_sql($node, "SELECT count(*) = 4 FROM outbox.attempts WHERE event_id = '$event'"), 'sent again');
ok(wait_settled($node), 'settled');
ask("SELECT outbox.portal_replay('acme', 'some', now() - interval '1 h')", 'portal');
ok(wait_sql($node, "SELECT count(*) = 5 FROM outbox.attempts WHERE event_id = '$event'"), 'and replayed');
$d = delivery('some', $event);
is_deeply([ map { $_->{cause} } @{ $d->{attempts} } ], [qw(replay resend retry retry first)], 'each request has its cause');
is(scalar(keys %{ { map { $_->{id} => 1 } @{ $d->{attempts} } } }), 5, 'and an id of its own');
my $test = decode_json(ask("SELECT outbox.portal_send_test('acme', 'some')", 'portal'))->{event_id};
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.attempts WHERE event_id = '$test'"), 'a test');
is(delivery('some', $test)->{attempts}[0]{cause}, 'test', 'is one');

# --- The request, as its receiver saw it

# Secrets are left out, and a signature stands for itself.
sub compare
{
	my ($name, $what, $event, $path) = @_;
	my $seen = ($receiver->requests(path => $path // "/ok/$name"))[-1];
	my $shown = delivery($name, $event)->{request};
	my %got = %{ $seen->{headers} };
	my %said = map { lc $_ => $shown->{headers}{$_} } keys %{ $shown->{headers} };
	$got{$_} =~ s/^(\w*[,=]).*/$1(left out)/ foreach grep { /signature/ } keys %got;
	$got{$_} = '(left out)' foreach grep { /^x-(secret|other)$/ } keys %got;
	$got{authorization} =~ s/ .*/ (left out)/ if $got{authorization};
	is($shown->{as}, 'sent', "$what: sent");
	is($shown->{line}, "$seen->{method} $seen->{target} HTTP/1.1", "$what: line") or diag explain $shown;
	is_deeply(\%said, \%got, "$what: headers") or diag explain [ \%said, \%got ];
	is($shown->{body}, $seen->{body}, "$what: body");
	return;
}

foreach my $case (
	[ 'standard', '' ],
	[ 'raw', "format => 'raw'" ],
	[ 'cloud', "format => 'cloudevents'" ],
	[ 'binary', "format => 'cloudevents-binary'" ],
	[ 'formed', q{config => '{"signature": "github", "method": "PUT", "query": "t={topic}&k={key}", "outbox_headers": "key,attempt", "user_agent": "shop"}'} ],
	[ 'slack', q{config => '{"signature": "none", "payload": {"text": "Order {$.n}"}}', headers => '{"x-secret": "s", "X-Other": "t"}'} ],
	[ 'basic', q{credentials => '{"username": "u", "password": "p"}'} ],
	[ 'bearer', q{credentials => '{"token": "t"}'} ])
{
	my ($name, $more) = @$case;
	endpoint($node, $receiver, $name, "/ok/$name", join ', ', "topics => '{$name}', tenant => 'acme', $quick", $more || ());
	$receiver->control(path => "/ok/$name", behave => '/flaky?first=1&status=503');
	my $event = ask(qq{SELECT outbox.emit('$name', '{"n": 1}', tenant => 'acme', key => 'k/1', type => U&'t\\00e4', headers => '{"x-of": "event", "tracestate": "a=b"}')});
	ok(wait_sql($node, "SELECT count(*) = 2 FROM outbox.attempts WHERE endpoint = '$name'"), "$name: two requests");
	ok(wait_settled($node), 'settled');
	compare($name, $name, $event);
	next if $name ne 'standard';
	$receiver->control(path => "/ok/$name", behave => '/ok');
	ask("SELECT outbox.portal_retry('acme', '$name', '$event')", 'portal');
	ok(wait_sql($node, "SELECT count(*) = 3 FROM outbox.attempts WHERE endpoint = '$name'"), 'again');
	compare($name, 'a resend', $event);
	ask("SELECT outbox.portal_rotate_secret('acme', '$name')", 'portal');
	compare($name, 'another secret since', $event);
}
ask("SELECT outbox.alter_endpoint('raw', format => 'standard')");

# libcurl encodes the path.
ask("SELECT outbox.create_endpoint('letters', '" . $receiver->url('/ok/uc') . q[' || U&'\00e4?q=%41', topics => '{letters}', tenant => 'acme')]);
compare('letters', 'a URL with other letters', (delivered('letters', 'delivered'))[0], '/ok/uc%c3%a4');

# --- Answers are a stranger's

answers('/ok/full', join("\r\n", 'HTTP/1.1 400 Bad', (map { "X-$_: " . ('v' x 300) } 1 .. 3), (map { "y-$_: w" } 1 .. 900), 'Content-Length: 100000'), "a\0b\xff\xc3" . 'c' x 100_000);
($event, $d) = delivered('full', 'dead');
$attempt = $d->{attempts}[0];
is($attempt->{response_headers}{'x-1'}, 'v' x 256 . '...', 'a long value is cut');
like($attempt->{response_headers}{'...'}, qr/^[0-9]+ more$/, 'and the number of headers that are left out is said');
is($attempt->{response_body}, 'a?b??' . 'c' x 1019, 'so is the body, and each byte that is no text is marked');
cmp_ok(ask("SELECT max(octet_length(response_headers)) FROM outbox.attempts"), '<=', 2048, 'no more is kept');
answers('/ok/full', "HTTP/1.1 200 OK\r\nX-Odd: \xff\xfe\x01\"\\\r\n\xe9\xff: 1\r\nEmpty:\r\nContent-Length: 0", '');
($event, $d) = delivered('full', 'delivered');
is($d->{attempts}[0]{response_headers}{'x-odd'}, "??\x01\"\\", 'bytes of a header that are no text are marked');
is($d->{attempts}[0]{response_headers}{empty}, '', 'an empty one is kept');
$node->append_conf('postgresql.conf', "outbox.log_answer_size = 3\n");
$node->reload;
ok(wait_sql($node, "SELECT current_setting('outbox.log_answer_size') = '3B'"), 'the setting');
answers('/ok/full', "HTTP/1.1 200 OK\r\nContent-Length: 7", 'thanks!');
($event, $d) = delivered('full', 'delivered');
($event, $d) = delivered('full', 'delivered');
is($d->{attempts}[0]{response_body}, 'tha', 'bounds the body');

# --- An id that an application has used twice, in two pieces of the log

my $twice = ask('SELECT gen_random_uuid()');
foreach my $n (1, 2)
{
	ask("UPDATE outbox.pieces SET piece = (piece + 1) % 3 WHERE log = 'events'") if $n == 2;
	replace_worker($node);
	ask(qq(INSERT INTO outbox.events (id, topic, payload, tenant) VALUES ('$twice', 'some', '{"n": $n}', 'acme')));
	$receiver->wait_delivered($n, id => $twice);
	ok(wait_settled($node), 'settled');
}
$d = delivery('some', $twice);
is($d->{event}{payload}{n}, ($d->{request}{body} // '') =~ /"n": 2/ ? 2 : 1, 'the content is that of the event whose delivery is shown');
like(ask("SELECT outbox.delivery_request('some', '$twice') ->> 'body'"), qr/"n": 2/, 'and an operator sees the same request');
my (undef, undef, $null) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.delivery_request('some', NULL)");
like($null, qr/22004: event must not be null.*HINT/s, 'NULL is no event that is gone');
like($d->{request}{body}, qr/"n": 2/, 'of the newer event');

# --- Why nothing is sent

ask("SELECT outbox.portal_pause_endpoint('acme', 'plain')", 'portal');
($event, $d) = delivered('plain', 'pending');
is("$d->{endpoint_state}, $d->{endpoint_reason}", 'paused, paused by its tenant', 'it waits for its endpoint');

# Where requests may go is the operator's affair.
ask("SELECT outbox.create_endpoint('inside', 'http://127.0.0.1:9/', topics => '{inside}', tenant => 'acme', $quick)");
ask("ALTER SYSTEM SET outbox.allowed_networks = ''");
$node->reload;
$event = ask("SELECT outbox.emit('inside', '{}', tenant => 'acme')");
ok(wait_sql($node, "SELECT error LIKE '%outbox.allowed_networks%' FROM outbox.attempts_page('inside', event => '$event', page_size => 1)"),
	'an operator sees which setting forbids it');
is(delivery('inside', $event)->{last_error}, 'the address in the URL is loopback', 'and a customer what is wrong');
unlike(ask("SELECT d, outbox.portal_delivery('acme', 'inside', '$event'), outbox.portal_endpoints('acme', 'inside') FROM outbox.portal_deliveries('acme', 'inside') d", 'portal'),
	qr/outbox\.[a-z]/, 'but no setting');
ask("SELECT outbox.drop_endpoint('inside', discard => true); ALTER SYSTEM RESET outbox.allowed_networks");
$node->reload;

# --- Forgotten

ask("SELECT outbox.forget('acme')");
ok(wait_sql($node, "SELECT bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress"), 'forgotten');
is(ask("SELECT count(*) FROM outbox.attempt_log WHERE response_body IS NOT NULL OR response_headers IS NOT NULL"), 0, 'no answer is left');

done_testing();
