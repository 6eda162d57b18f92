# One delivery is shown right whatever its endpoint is, and whatever became of the requests.
# That is a batch, a sink, TLS, HTTP/2, a failure without an answer, and what is not logged.
use strict;
use warnings;

use IO::Socket::INET;
use JSON::PP;
use MIME::Base64 ();
use OutboxTest;
use OutboxTest::Kafka;
use OutboxTest::Aws;
use OutboxTest::Network;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my @sinks = grep { is_installed("outbox_$_") } qw(kafka aws);
make_ca($dir, 'authority');
make_cert($dir, 'good', 'authority', 'DNS:localhost');
my $node = outbox_node('main', conf => "outbox.settle_interval = '1 ms'\noutbox.ssl_ca_file = '$dir/authority.crt'\noutbox.sinks = '" . join(', ', 'webhook', @sinks) . "'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $quick = "backoff_base => '1 ms', backoff_max => '2 ms'";

sub as
{
	my ($role, $sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql", extra_params => [ '-U', $role ]);
	return $rc ? $err =~ /ERROR:\s+(\w+)/ && $1 : $out;
}

sub delivery
{
	my ($endpoint, $event) = @_;
	return decode_json(as('portal', "SELECT outbox.portal_delivery('acme', '$endpoint', '$event')"));
}

sub made { return endpoint($node, $receiver, $_[0], $_[1], join ', ', "topics => '{$_[0]}', tenant => 'acme'", @_[2 .. $#_]) }

# An event that only this endpoint gets, when its delivery has this status
sub emitted
{
	my ($endpoint, $status) = @_;
	my $event = ask("SELECT outbox.emit('$endpoint', '{\"n\": 1}', tenant => 'acme', key => 'k')");
	ok(wait_sql($node, "SELECT status = '$status' FROM outbox.deliveries_page('$endpoint', event => '$event')"), "$endpoint: $status");
	return $event;
}

ask("CREATE ROLE $_ LOGIN; SELECT outbox.grant_to('$_', '$_')") foreach qw(portal operate watch);

# --- A batch

made('batch', '/ok/batch', "batch_size => 10, batch_wait => '1 ms'");
my ($event) = split /\n/, ask(q{SELECT outbox.emit('batch', jsonb_build_object('n', n), tenant => 'acme') FROM generate_series(1, 3) n});
ok(wait_sql($node, "SELECT delivered = 3 FROM outbox.stats WHERE endpoint = 'batch'"), 'batch: delivered');
ok(wait_settled($node), 'settled');
my $d = delivery('batch', $event);
ok($d->{request}{batch}, 'it is said that the request was a batch');
is_deeply([ map { $_->{id} } @{ decode_json($d->{request}{body}) } ], [$event], 'it is shown with this event alone');
is($d->{request}{line}, 'POST /ok/batch HTTP/1.1', 'with its line');
is($d->{request}{headers}{'webhook-id'}, '(id of the batch)', 'and the id is said to be that of the batch');
is($d->{attempts}[0]{cause}, 'first', 'each of its events has the cause');
my $attempts = decode_json(as('portal', "SELECT outbox.portal_attempts('acme', 'batch')"))->{attempts};
is(scalar(keys %{ { map { $_->{id} => 1 } @$attempts } }), 3, 'and an id of its own');
is($d->{attempts}[0]{id}, (grep { $_->{event_id} eq $event } @$attempts)[0]{id}, 'which is the same where the requests are listed');

# --- Headers that libcurl leaves to the event

made('accepts', '/ok/accepts');
my $asks = ask(q{SELECT outbox.emit('accepts', '{}', tenant => 'acme', headers => '{"accept": "application/json"}')});
my ($accepts) = $receiver->wait_delivered(1, path => '/ok/accepts');
ok(wait_sql($node, "SELECT delivered = 1 FROM outbox.stats WHERE endpoint = 'accepts'"), 'accepts: delivered');
is_deeply([ map { $_->{headers}{accept} } delivery('accepts', $asks)->{request}, $accepts ], [ ('application/json') x 2 ], 'Accept is shown as it was sent');

# --- Requests that got no answer, or one that is refused

my $silent = IO::Socket::INET->new(Listen => 10, LocalAddr => '127.0.0.1') or die "listen: $!";
ask("SELECT outbox.create_endpoint('hangs', 'http://127.0.0.1:" . $silent->sockport . "/hang', '{hangs}', tenant => 'acme', timeout => '300 ms', max_attempts => 1)");
$d = delivery('hangs', emitted('hangs', 'dead'));
my $attempt = $d->{attempts}[0];
cmp_ok($attempt->{connect_ms}, '>', 0, 'a timeout has the time to connect');
cmp_ok($attempt->{duration_ms}, '>=', 300, 'and the whole');
is_deeply([ @{$attempt}{qw(first_byte_ms status_code response_headers response_body lookup_ms tls_ms)} ], [ (undef) x 6 ], 'but no byte of an answer');
like($attempt->{error}, qr/^timed out/, 'and says so');
is($d->{request}{line}, 'POST /hang HTTP/1.1', 'its request is shown');
my $nowhere = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Proto => 'tcp') or die "socket: $!";
ask("SELECT outbox.create_endpoint('nowhere', 'http://127.0.0.1:" . $nowhere->sockport . "/x', '{nowhere}', tenant => 'acme', max_attempts => 1)");
$attempt = delivery('nowhere', emitted('nowhere', 'dead'))->{attempts}[0];
is_deeply([ @{$attempt}{qw(connect_ms first_byte_ms)} ], [ undef, undef ], 'without a connection no time is known');
foreach my $how (qw(close rst))
{
	made($how, "/$how", 'max_attempts => 1');
	$attempt = delivery($how, emitted($how, 'dead'))->{attempts}[0];
	is($attempt->{error}, 'the connection was closed before the answer', "$how: closed");
	is($attempt->{first_byte_ms}, undef, 'no byte of an answer came');
}
made('moved', '/redirect/moved?to=http://127.0.0.1:1/secret', 'max_attempts => 1');
$attempt = delivery('moved', emitted('moved', 'dead'))->{attempts}[0];
is($attempt->{error}, 'the receiver answered 302, and redirects are not followed', 'a redirect is refused');
is($attempt->{response_headers}{location}, 'http://127.0.0.1:1/secret', 'and it is shown where it leads');

# --- TLS, and the version of HTTP that was spoken

my $front = start_front('127.0.0.1:0', $receiver->{port}, cert => "$dir/good.crt", key => "$dir/good.key");
my %port = (one => $front->{port}, asks_2 => $front->{port});
SKIP:
{
	my $nginx = -x '/usr/sbin/nginx' ? '/usr/sbin/nginx' : 'nginx';
	my $libcurl = `curl-config --features 2>/dev/null` // '';
	skip 'no HTTP/2', 1 if (`$nginx -V 2>&1` // '') !~ /http_v2/ || ($libcurl && $libcurl !~ /HTTP2/);
	$port{speaks_2} = PostgreSQL::Test::Cluster::get_free_port();
	start_nginx($nginx, $dir, <<"HTTP");
	access_log off;
	server { listen 127.0.0.1:$port{speaks_2} ssl http2; location / { proxy_pass http://127.0.0.1:$receiver->{port}; } }
HTTP
	pass('nginx speaks HTTP/2');
}
foreach my $name (sort keys %port)
{
	my $config = $name eq 'one' ? '{}' : '{"http_version": "2"}';
	ask("SELECT outbox.create_endpoint('$name', 'https://localhost:$port{$name}/ok/$name', '{$name}', tenant => 'acme', max_attempts => 1, log_attempts => 'answers', config => '$config')");
	$d = delivery($name, emitted($name, 'delivered'));
	cmp_ok($d->{attempts}[0]{tls_ms}, '>', 0, "$name: time of TLS");
	cmp_ok($d->{attempts}[0]{connect_ms} + $d->{attempts}[0]{tls_ms} + $d->{attempts}[0]{first_byte_ms}, '<=', $d->{attempts}[0]{duration_ms} + 1, "$name: the parts are no longer than the whole");
	is($d->{request}{line}, "POST /ok/$name HTTP/" . ($name eq 'speaks_2' ? '2' : '1.1'), "$name: the version that was spoken");
	is($d->{attempts}[0]{cause}, 'first', "$name: the cause beside it");
}
ask("SELECT outbox.pause_endpoint('asks_2')");
is(delivery('asks_2', emitted('asks_2', 'pending'))->{request}{line}, 'POST /ok/asks_2 HTTP/2', 'before a request it is the version that is asked for');

# --- What is not logged

made('unlogged', '/ok/unlogged', "log_attempts => 'none'");
is(delivery('unlogged', emitted('unlogged', 'delivered'))->{request}{as}, 'unknown', 'a delivery whose request is not logged is not the next one');
made('unlogged_dead', '/status/400/unlogged', "log_attempts => 'none', max_attempts => 1");
$d = delivery('unlogged_dead', emitted('unlogged_dead', 'dead'));
is_deeply([ $d->{request}{as}, $d->{request}{headers}{'outbox-attempt'} ], [ 'unknown', '1' ], 'nor a dead one');
made('expires', '/ok/expires');
ask("SELECT outbox.pause_endpoint('expires')");
is(delivery('expires', emitted('expires', 'pending'))->{request}{as}, 'next', 'one that waits is');
is(decode_json(ask("SELECT outbox.delivery_request('expires', '$event')"))->{as}, 'unknown', 'one that the endpoint does not get is none');

# --- Bytes, as base64 in one line

made('bytes', '/ok/bytes', "format => 'raw'");
$event = ask(q{SELECT outbox.emit_bytes('bytes', decode(repeat('00ff', 100), 'hex'), 'application/pdf', tenant => 'acme')});
ok(wait_sql($node, "SELECT delivered = 1 FROM outbox.stats WHERE endpoint = 'bytes'"), 'bytes: delivered');
$d = delivery('bytes', $event);
is($d->{$_}{body_base64}, MIME::Base64::encode("\x00\xff" x 100, ''), "bytes of the $_") foreach qw(event request);

# --- A delivery that waits because its topic is refused was not sent

made('held', '/poison/held?n=1&how=400', "backoff_base => '1 h', backoff_max => '1 h'");
ask("SELECT outbox.alter_endpoint('held', topics => '{held,taken}')");
ask(q{SELECT outbox.emit('taken', '{"n": 2}', tenant => 'acme')});
ok($receiver->wait_delivered(1, path => '/poison/held'), 'it takes other events');
foreach my $n (1 .. 20)
{
	ask(q{SELECT outbox.emit('held', '{"n": 1}', tenant => 'acme')});
	wait_until { $n == grep { ($_->{status} // 0) == 400 } $receiver->requests(path => '/poison/held') } 'refused';
}
ok(wait_sql($node, "SELECT reason = 'the receiver refuses the topic held' FROM outbox.stats WHERE endpoint = 'held'"), 'its topic is refused');
my $held = emitted('held', 'retrying');
$d = delivery('held', $held);
is_deeply([ $d->{attempts}, $d->{last_error}, $d->{request}{as} ], [ [], 'the receiver refuses its topic', 'next' ], 'one is not sent');
$receiver->control(path => '/poison/held', behave => '/ok');
ask("SELECT outbox.resume_endpoint('held')");
ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.attempts WHERE event_id = '$held'"), 'it is sent');
is_deeply([ map { $_->{cause} } @{ delivery('held', $held)->{attempts} } ], ['first'], 'and its first request is one');

# --- Sinks

SKIP:
{
	skip 'outbox_kafka was not built', 1 unless grep { $_ eq 'kafka' } @sinks;
	my ($address, $mock) = OutboxTest::Kafka::mock_broker();
	$mock->('topic t 1');
	ask(qq{SELECT outbox.create_endpoint('kafka', 'kafka://$address/t', '{kafka}', tenant => 'acme', headers => '{"x-secret": "s"}', config => '{"payload": {"text": "Order {\$.n}"}}')});
	$d = delivery('kafka', emitted('kafka', 'delivered'));
	is_deeply([ @{ $d->{request} }{qw(as batch line body problem)} ], [ 'sent', JSON::PP::false, undef, '{"text": "Order 1"}', undef ], 'Kafka: what was sent') or diag explain $d->{request};
	is_deeply([ @{ $d->{request}{headers} }{qw(outbox-id outbox-topic outbox-attempt x-secret)} ], [ $d->{event_id}, 'kafka', '1', '(left out)' ], 'its headers');
	is($d->{attempts}[0]{cause}, 'first', 'its cause');
}
SKIP:
{
	skip 'outbox_aws was not built', 1 unless grep { $_ eq 'aws' } @sinks;
	my $aws = OutboxTest::Aws->new;
	ask('SELECT ' . $aws->create_endpoint('aws', 'sqs', 'orders', "topics => '{aws}', tenant => 'acme'"));
	$d = delivery('aws', emitted('aws', 'delivered'));
	is_deeply([ @{ $d->{request} }{qw(as batch line body problem)} ], [ 'sent', JSON::PP::false, undef, '{"n": 1}', undef ], 'AWS: what was sent') or diag explain $d->{request};
	unlike(encode_json($d), qr/AKIDEXAMPLE|wJalrXUtn/, 'without its keys');
}

# --- Others

endpoint($node, $receiver, 'theirs', '/ok/theirs', "topics => '{x}', tenant => 'globex'");
foreach my $case ([ 'globex', 'batch', $event ], [ 'globex', 'theirs', $event ], [ 'globex', 'missing', $event ])
{
	my ($tenant, $endpoint, $id) = @$case;
	is(as('portal', "SELECT outbox.portal_delivery('$tenant', '$endpoint', '$id')"), '42704', "$tenant gets nothing of $endpoint");
}
my ($rc, $out, $other) = $node->psql('postgres', "SELECT outbox.portal_delivery('globex', 'batch', '$event')");
($rc, $out, my $missing) = $node->psql('postgres', "SELECT outbox.portal_delivery('globex', 'batc_', '$event')");
is($other, $missing =~ s/batc_/batch/gr, 'in the same words as of an endpoint that there is not');
is(as($_, "SELECT outbox.portal_delivery('acme', 'batch', '$event')"), '42501', "$_ may not call the portal's functions") foreach qw(operate watch);
is(as($_, "SELECT outbox.delivery_request('batch', '$event')"), '42501', "$_ may not call the operator's") foreach qw(portal watch);
like(as('operate', "SELECT outbox.delivery_request('batch', '$event')"), qr/"batch": true/, 'which operate may');

$node->stop;
done_testing();
