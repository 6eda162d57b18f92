# Events reach SQS, SNS, EventBridge and Kinesis in batches, and each entry ends as the answer says.
# Wrong keys, missing queues, throttling and addresses that are refused are named in words, and
# no event fails for them.  Against a stand-in of AWS that checks each signature by itself.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Aws;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Aws::needed();
my $dir = PostgreSQL::Test::Utils::tempdir('aws');
my $aws = OutboxTest::Aws->new;
my ($port, $account, $keys) = ($aws->{port}, $OutboxTest::Aws::account, $OutboxTest::Aws::keys);

sub fake     { return $aws->tell(@_) }
sub requests { return $aws->requests(@_) }
sub stored   { return $aws->stored(@_) }

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, aws'\n");

sub create
{
	my ($name, $resource, $topics, %more) = @_;
	$more{config} //= qq({"endpoint_url": "http://127.0.0.1:$port"});
	my $credentials = $more{credentials} // $keys;
	my $rest = $more{rest} ? ", $more{rest}" : '';
	return ask("SELECT outbox.create_endpoint('$name', 'arn:aws:$resource', '$topics', config => '$more{config}', credentials => $credentials $rest)");
}

# SQS: one event, byte for byte, with its attributes
create('orders', "sqs:eu-central-1:$account:orders", '{order.*}', rest => q(format => 'raw', headers => '{"x-endpoint": "e"}'));
my $id = emit($node, 'order.created', '{"n": "ü\u0001\"<&>"}', q{key => 'ключ', headers => '{"x-a": "b"}'});
wait_status($node, $id, 'delivered', 'an event is delivered to a queue');
my ($got) = stored('orders');
is($got->{MessageBody}, qq({"n": "\x{fc}\\u0001\\"<&>"}), 'the body');
my %attribute = map { ($_ => $got->{MessageAttributes}{$_}{StringValue}) } keys %{ $got->{MessageAttributes} };
is_deeply(\%attribute, {'content-type' => 'application/json', 'outbox-id' => $id, 'outbox-topic' => 'order.created',
	'outbox-type' => 'order.created', 'x-endpoint' => 'e', 'x-a' => 'b'}, 'the attributes');
is($got->{MessageGroupId}, undef, 'a standard queue gets no group');
like((requests('orders'))[0]{authorization}, qr{^AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d{8}/eu-central-1/sqs/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-target, },
	'signed for the region of the ARN');
$id = ask(q{SELECT outbox.emit_bytes('order.bytes', '\x00ff0180'::bytea, 'application/avro')});
wait_status($node, $id, 'dead', 'bytes that XML does not have are dead');
is(ask("SELECT reason || ': ' || last_error FROM outbox.dead_letters WHERE event_id = '$id'"),
	'aborted by receiver: SQS cannot take this event: its body has bytes that are no UTF-8, or a character that XML does not have', 'with the reason');

# A service that ends a connection while it has a request
my $failed = stat_of($node, 'orders', 'failed_attempts');
fake(rules => [ { close => 1, times => 1 } ]);
$id = emit($node, 'order.lost', '{}');
wait_status($node, $id, 'delivered', 'a request without an answer is sent again');
is(scalar(grep { $_->{rule}{close} } requests('orders')), 1, 'over another connection');
ok(wait_sql($node, "SELECT string_agg(coalesce(error, 'delivered'), '; ' ORDER BY started_at) FROM outbox.attempts WHERE event_id = '$id'",
	'the connection was closed before the answer, and it was sent again; delivered'), 'each that the service saw is recorded');
is(stat_of($node, 'orders', 'failed_attempts'), $failed, 'and none counts as a failure');

# Connections end after the request and services refuse it, sometimes twice in a row: each request that the service saw
# has a row in outbox.attempts for each of its events.
foreach my $service (qw(sqs sns))
{
	my $name = "lossy-$service";
	create($name, "$service:eu-central-1:$account:$name", "{$name}");
	fake(rules => [ (map { { close => 1, times => 1 }, { times => 2 } } 1 .. 8), { close => 1, times => 3 },
		{ status => 503, code => 'ServiceUnavailable', times => 2 }, { status => 400, code => 'InvalidParameterValue', times => 1 } ]);
	ask("SELECT count(outbox.emit('$name', jsonb_build_object('n', n))) FROM generate_series(1, 300) n");
	ok(wait_sql($node, "SELECT delivered = 300 FROM outbox.stats WHERE endpoint = '$name'"), "$name: delivered");
	my @saw = requests($name);
	my $entries = 0;
	$entries += scalar @{ $_->{entries} } foreach @saw;
	is(scalar(grep { $_->{rule}{close} || $_->{status} != 200 } @saw), 14, "$name: so many of its requests were not taken");
	ok(wait_sql($node, "SELECT count(*) = $entries FROM outbox.attempts WHERE endpoint = '$name'"), "$name: each that the service saw is recorded")
	  or diag "$entries were seen: " . ask("SELECT count(*), error FROM outbox.attempts WHERE endpoint = '$name' GROUP BY 2");
}
fake(rules => []);

# Batches
my $n = 2000;
create('many', "sqs:eu-central-1:$account:many", '{many}', rest => q(format => 'raw', max_in_flight => 200, timeout => '60 s'));
ask("SELECT count(outbox.emit('many', jsonb_build_object('n', n), key => 'k' || n % 500)) FROM generate_series(1, $n) n");
endpoint_shows($node, 'many', "delivered = $n AND pending = 0", "$n events are delivered");
is(scalar stored('many'), $n, 'each once');
my @sizes = map { scalar @{ $_->{entries} } } requests('many');
cmp_ok(scalar @sizes, '<', $n / 3, 'in requests of several');
is(scalar(grep { $_ > 10 } @sizes), 0, 'of ten at most');

# Entries that fail, each by itself
create('mixed', "sqs:eu-central-1:$account:mixed", '{mixed}', rest => q(format => 'raw', backoff_base => '10 ms'));
fake(rules => [ { fail => { with => 'wrong', code => 'InvalidParameterValue', sender_fault => JSON::PP::true, message => 'is not wanted' } } ]);
ask(q{SELECT count(outbox.emit('mixed', jsonb_build_object('n', n, 'is', CASE WHEN n % 10 = 3 THEN 'wrong' ELSE 'good' END))) FROM generate_series(1, 50) n});
endpoint_shows($node, 'mixed', "delivered = 45 AND dead = 5 AND pending = 0 AND (SELECT count(*) FROM outbox.dead_letters WHERE endpoint = 'mixed') = 5", 'an entry that is the sender\'s fault is dead, and the others are delivered');
is(ask("SELECT DISTINCT reason || ': ' || last_error FROM outbox.dead_letters WHERE endpoint = 'mixed'"),
	'aborted by receiver: SQS: InvalidParameterValue: is not wanted', 'with the words of AWS');
is(scalar stored('mixed'), 45, 'each once');
fake(rules => [ { fail => { with => 'later', code => 'InternalError' }, times => 1 } ]);
$id = emit($node, 'mixed', '{"is": "later"}');
wait_status($node, $id, 'delivered', 'one that is not the sender\'s fault is tried again');
fake(rules => [ { omit => 'unnamed', times => 1 } ]);
$id = emit($node, 'mixed', '{"is": "unnamed"}');
wait_status($node, $id, 'delivered', 'and one that the answer does not name');
endpoint_shows($node, 'mixed', 'failed_attempts = 5 + 2', 'which counts as an attempt each');

# A request that is refused as a whole for one of its events
create('split', "sqs:eu-central-1:$account:split", '{split}', rest => q(format => 'raw', backoff_base => '10 ms'));
fake(rules => [ { status => 400, code => 'BatchRequestTooLong', message => 'too long', times => 1 } ]);
ask(q{SELECT count(outbox.emit('split', jsonb_build_object('n', n))) FROM generate_series(1, 10) n});
endpoint_shows($node, 'split', 'delivered = 10 AND failed_attempts = 0', 'a batch that is refused goes one by one, and no attempt is counted');
fake(rules => [ { status => 400, code => 'InvalidMessageContents', message => 'no', with => 'wrong' } ]);
ask(q{SELECT count(outbox.emit('split', jsonb_build_object('n', n, 'is', CASE n WHEN 17 THEN 'wrong' ELSE 'good' END))) FROM generate_series(11, 30) n});
endpoint_shows($node, 'split', 'delivered = 29 AND dead = 1 AND failed_attempts = 1', 'the one that is the cause is dead');
fake(rules => []);

# Limits are judged before
create('limits', "sqs:eu-central-1:$account:limits", '{limits}', rest => q(format => 'raw', timeout => '30 s'));
my $large = ask(q{SELECT outbox.emit('limits', jsonb_build_object('large', repeat('x', 1024 * 1024 - 500)))});
my $too_large = ask(q{SELECT outbox.emit('limits', jsonb_build_object('large', repeat('x', 1024 * 1024 - 60)))});
my $many_headers = emit($node, 'limits', '{}', q{headers => '{"x-1":"a","x-2":"a","x-3":"a","x-4":"a","x-5":"a","x-6":"a","x-7":"a"}'});
my $small = emit($node, 'limits', '{}', q{headers => '{"x-1":"a","x-2":"a","x-3":"a","x-4":"a","x-5":"a","x-6":"a"}'});
wait_status($node, $_->[0], $_->[1], $_->[2])
  foreach ([ $large, 'delivered', 'an event of almost 1 MiB is delivered' ], [ $too_large, 'dead', 'a larger one is dead' ],
	[ $many_headers, 'dead', 'one with eleven attributes is dead' ], [ $small, 'delivered', 'one with ten is delivered' ]);
is(join("\n", sort split /\n/, ask("SELECT last_error FROM outbox.dead_letters WHERE endpoint = 'limits'")),
	"SQS cannot take this event: it has more headers than a message may have attributes, which is 10\n"
	  . 'SQS cannot take this event: it is larger than the service takes, with its attributes', 'with the reason');
my @limits = requests('limits');
is(scalar(map { @{ $_->{entries} } } @limits), 2, 'they were not sent');
ask("SELECT outbox.resend('limits', '$small')");
ok(wait_until(sub { scalar(stored('limits')) == 3 }, 'a third message'), 'one with ten is delivered again');

# FIFO
create('fifo', "sqs:eu-central-1:$account:fifo.fifo", '{fifo}', rest => q(format => 'raw', max_in_flight => 100));
$id = emit($node, 'fifo', '{}', q{key => 'customer-7'});
my $hashed = emit($node, 'fifo', '{}', q{key => 'ключ'});
my $unkeyed = emit($node, 'fifo', '{}');
endpoint_shows($node, 'fifo', 'delivered = 3', 'events for a FIFO queue');
my %group = map { ($_->{MessageDeduplicationId} => $_->{MessageGroupId}) } stored('fifo.fifo');
is_deeply(\%group, { $id => 'customer-7', $hashed => ask("SELECT encode(sha256('ключ'), 'hex')"), $unkeyed => $unkeyed },
	'the group is the key, or its hash, or without a key the id, by which repetitions are recognized');
ask("SELECT count(outbox.emit('fifo', jsonb_build_object('n', n), key => 'k' || n % 30)) FROM generate_series(1, 1000) n");
endpoint_shows($node, 'fifo', 'delivered = 1003', 'a thousand events of 30 keys');
my (%last, $disorder, $together);
foreach my $request (requests('fifo.fifo'))
{
	my %in;
	$together += grep { $in{ $_->{MessageGroupId} }++ } @{ $request->{entries} };
}
foreach my $e (grep { $_->{MessageBody} =~ /n/ } stored('fifo.fifo'))
{
	my ($number) = $e->{MessageBody} =~ /"n": (\d+)/;
	$disorder++ if ($last{ $e->{MessageGroupId} } // 0) >= $number;
	$last{ $e->{MessageGroupId} } = $number;
}
is($disorder // 0, 0, 'in the order of their keys');
is($together, 0, 'one of a key in a request at most');

# A queue that is missing
fake(missing => ['later']);
create('later', "sqs:eu-central-1:$account:later", '{later}', rest => q(format => 'raw'));
ask("SELECT count(outbox.emit('later', jsonb_build_object('n', n), key => 'k')) FROM generate_series(1, 30) n");
endpoint_shows($node, 'later', "state = 'backing_off' AND reason = 'SQS: QueueDoesNotExist: The specified resource does not exist.'", 'a missing queue is named');
fake(missing => []);
endpoint_shows($node, 'later', "delivered = 30 AND failed_attempts = 0 AND state = 'active'", 'once it is there, all are delivered and none has failed');
is(join(' ', map { $_->{MessageBody} =~ /(\d+)/ } stored('later')), join(' ', 1 .. 30), 'in order, each once');

# Keys that are wrong
create('keys', "sqs:eu-central-1:$account:keys", '{keys}', rest => q(format => 'raw'), credentials => q('{"access_key_id": "AKIDEXAMPLE", "secret_access_key": "typo"}'));
$id = emit($node, 'keys', '{}');
endpoint_shows($node, 'keys', "state = 'backing_off' AND reason = 'SQS: SignatureDoesNotMatch: The request signature we calculated does not match the signature you provided.'",
	'a wrong secret is named');
ask(q(SELECT outbox.alter_endpoint('keys', credentials => '{"access_key_id": "AKIDOTHER", "secret_access_key": "x", "session_token": "tok/en+="}')));
endpoint_shows($node, 'keys', "reason = 'SQS: InvalidClientTokenId: The security token included in the request is invalid.'", 'and an unknown key');
fake(secrets => { AKIDOTHER => [ 'x', 'other' ] });
endpoint_shows($node, 'keys', "reason = 'SQS: ExpiredToken: The security token included in the request is expired'", 'and a session that is over');
fake(secrets => { AKIDOTHER => [ 'x', 'tok/en+=' ] });
wait_status($node, $id, 'delivered', 'the event goes when the key is known');
endpoint_shows($node, 'keys', 'failed_attempts = 0', 'and no attempt was counted');
fake(rules => [ { status => 400, code => 'Echo', message => 'you sent tok/en+=', times => 1 } ]);
$id = emit($node, 'keys', '{"echo": 1}');
ok(wait_sql($node, "SELECT last_error = 'SQS: its words have the session token in them' FROM outbox.stats WHERE endpoint = 'keys'"), 'a token that is echoed is not shown');

# Throttling
create('busy', "sqs:eu-central-1:$account:busy", '{busy}', rest => q(format => 'raw'));
fake(rules => [ { status => 400, code => 'RequestThrottled', message => 'slow', times => 3 } ]);
ask("SELECT count(outbox.emit('busy', jsonb_build_object('n', n))) FROM generate_series(1, 100) n");
endpoint_shows($node, 'busy', "delivered = 100 AND failed_attempts = 0 AND state = 'active'", 'what was throttled is delivered, and no attempt was counted');
fake(rules => [ { status => 503, code => 'ServiceUnavailable', times => 2 }, { status => 301, code => 'Moved', headers => { Location => "http://127.0.0.1:$port/elsewhere" }, times => 1 },
	{ raw => '<html>a portal</html>', times => 1 }, { close => 1, times => 2, silent => JSON::PP::true },
	{ raw => '[' x 1000, repeat => 2000, times => 1 } ]);
ask("SELECT outbox.emit('busy', '{\"n\": 101}')");
endpoint_shows($node, 'busy', "delivered = 101 AND failed_attempts = 0 AND state = 'active'", 'errors, a redirection, a foreign page, a closed connection and an endless answer are waited out');
is(scalar requests('GET'), 0, 'a redirection is not followed');

# AWS goes in the middle, and comes back
create('load', "sqs:eu-central-1:$account:load.fifo", '{load}', rest => q(format => 'raw', max_in_flight => 50));
ask("SELECT count(outbox.emit('load', jsonb_build_object('n', n), key => 'k' || n % 20)) FROM generate_series(1, 1000) n");
$aws->signal('KILL');
ask("SELECT count(outbox.emit('load', jsonb_build_object('n', n), key => 'k' || n % 20)) FROM generate_series(1001, 2000) n");
endpoint_shows($node, 'load', "state = 'backing_off' AND reason ~ '^SQS: .*(onnect|reset|Empty)'", 'AWS that cannot be reached is shown');
$aws->start;
endpoint_shows($node, 'load', "delivered = 2000 AND failed_attempts = 0 AND state = 'active'", 'all are delivered when it is back, and none has failed');
my %first;
%last = ();
$disorder = 0;
foreach my $e (grep { !$first{ $_->{MessageDeduplicationId} }++ } stored('load.fifo'))
{
	my ($number) = $e->{MessageBody} =~ /"n": (\d+)/;
	$disorder++ if ($last{ $e->{MessageGroupId} } // 0) >= $number;
	$last{ $e->{MessageGroupId} } = $number;
}
is(scalar keys %first, 2000, 'nothing is lost');
is($disorder, 0, 'and each key is in order');

# A request that gets no answer is a failed attempt
create('silent', "sqs:eu-central-1:$account:silent", '{silent}', rest => q(format => 'raw', timeout => '1 s', backoff_base => '10 ms'));
fake(rules => [ { hang => 30, times => 1 } ]);
$id = emit($node, 'silent', '{}');
wait_status($node, $id, 'delivered', 'an event without an answer is sent again');
endpoint_shows($node, 'silent', "failed_attempts >= 1 AND last_error = 'SQS: timed out'", 'and that was a failed attempt');

# Addresses, which are judged again with each connection
ask("ALTER SYSTEM SET outbox.allowed_networks = '127.0.0.0/8, 192.0.2.0/24'");
ask('SELECT pg_reload_conf()');
wait_sql($node, q{SELECT current_setting('outbox.allowed_networks') ~ '192'});
create('inside', "sqs:eu-central-1:$account:inside", '{inside}', rest => q(format => 'raw'));
create('plain', "sqs:eu-central-1:$account:inside", '{plain}', config => '{"endpoint_url": "http://192.0.2.1"}');
ask("ALTER SYSTEM SET outbox.allowed_networks = '10.99.0.0/16'");
ask('SELECT pg_reload_conf()');
$id = emit($node, 'keys', '{}');
endpoint_shows($node, 'keys', "state = 'backing_off' AND reason = 'SQS: address 127.0.0.1 is loopback, and not in outbox.allowed_networks'",
	'a connection that is open is not used for an address that is not allowed any more');
my $inside = emit($node, 'inside', '{}');
endpoint_shows($node, 'inside', "state = 'backing_off' AND reason = 'SQS: address 127.0.0.1 is loopback, and not in outbox.allowed_networks'", 'nor is a new one made');
emit($node, 'plain', '{}');
endpoint_shows($node, 'plain', "state = 'backing_off' AND reason ~ '^SQS: address 192.0.2.1 is .*, and not in outbox.allowed_networks'", 'nor to another address in clear');
is(scalar requests('inside'), 0, 'nothing was sent');
ask("SELECT outbox.drop_endpoint('plain', true)");
ask("ALTER SYSTEM RESET outbox.allowed_networks");
ask('SELECT pg_reload_conf()');
wait_status($node, $inside, 'delivered', 'until it is allowed');
endpoint_shows($node, 'inside', 'failed_attempts = 0', 'and no attempt was counted');
create('tls', "sqs:eu-central-1:$account:tls", '{tls}', config => qq({"endpoint_url": "https://127.0.0.1:$port"}));
emit($node, 'tls', '{}');
endpoint_shows($node, 'tls', "state = 'backing_off' AND reason ~ 'SSL|TLS'", 'a service without TLS is not spoken to in clear');
ask("SELECT outbox.drop_endpoint('tls', true)");

# TLS: a service whose certificate is its own authority, $dir/NAME.crt
sub with_tls
{
	my ($name) = @_;
	system("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=$name -addext subjectAltName=IP:127.0.0.1 -keyout $dir/$name.key -out $dir/$name.crt > $dir/openssl 2>&1") == 0
	  or die slurp_file("$dir/openssl");
	append_to_file("$dir/$name.pem", slurp_file("$dir/$name.key") . slurp_file("$dir/$name.crt"));
	return OutboxTest::Aws->new(journal => $aws->{journal}, pem => "$dir/$name.pem");
}

my ($tls, $next) = map { with_tls($_) } qw(trusted next);
create('tls', "sqs:eu-central-1:$account:tls", '{tls}', config => qq({"endpoint_url": "https://127.0.0.1:$tls->{port}"}), rest => q(format => 'raw'));
$id = emit($node, 'tls', '{}');
endpoint_shows($node, 'tls', "state = 'backing_off' AND reason ~ 'certificate'", 'a certificate of an unknown authority is refused');
ask("ALTER SYSTEM SET outbox.ssl_ca_file = '$dir/trusted.crt'");
ask('SELECT pg_reload_conf()');
wait_status($node, $id, 'delivered', 'until the authority is known');
endpoint_shows($node, 'tls', 'failed_attempts = 0', 'and no attempt was counted');
my @tls = requests('tls');
is(scalar @tls, 1, 'nothing was sent before');
rename "$dir/next.crt", "$dir/trusted.crt" or die "$dir: $!";
ask('SELECT pg_reload_conf()');
create('next', "sqs:eu-central-1:$account:next", '{next}', config => qq({"endpoint_url": "https://127.0.0.1:$next->{port}"}), rest => q(format => 'raw'));
$id = emit($node, 'next', '{}');
wait_status($node, $id, 'delivered', 'a file that was replaced is read again after a reload');
ok(wait_until(sub { emit($node, 'tls', '{}'); stat_of($node, 'tls', "state = 'backing_off' AND reason ~ 'certificate'") eq 't' }, 'the former one'),
	'and the former authority is not trusted any more');
ask("SELECT outbox.drop_endpoint('tls', true)");

# The others
create('topic', "sns:eu-west-1:$account:topic", '{sns}', rest => q(format => 'raw'));
create('topic_fifo', "sns:eu-west-1:$account:topic.fifo", '{sns}', rest => q(format => 'raw'));
$id = emit($node, 'sns', '{"n": "ü+&=%"}', q{key => 'a key & more', headers => '{"x-a": "b c+d"}'});
wait_status($node, $id, 'delivered', 'an event for topics of SNS');
($got) = stored('topic');
is($got->{Message}, qq({"n": "\x{fc}+&=%"}), 'the body');
is($got->{MessageAttributes}{'x-a'}{StringValue}, 'b c+d', 'an attribute');
($got) = stored('topic.fifo');
is($got->{MessageGroupId}, ask("SELECT encode(sha256('a key & more'), 'hex')"), 'a key with spaces is hashed');
is($got->{MessageDeduplicationId}, $id, 'repetitions are recognized by the id');
fake(rules => [ { fail => { with => 'wrong', code => 'InvalidParameter', sender_fault => JSON::PP::true, message => 'a < b & "c"' }, times => 2 } ]);
$id = emit($node, 'sns', '{"n": "wrong"}', q{key => 'k'});
wait_status($node, $id, 'dead', 'an entry that SNS refuses is dead');
is(ask("SELECT DISTINCT last_error FROM outbox.dead_letters WHERE event_id = '$id'"), 'SNS: InvalidParameter: a < b & "c"', 'with its words');
fake(missing => ['topic']);
$id = emit($node, 'sns', '{}');
endpoint_shows($node, 'topic', "state = 'backing_off' AND reason = 'SNS: NotFound: The specified resource does not exist.'", 'a missing topic is named');
fake(missing => []);
wait_status($node, $id, 'delivered', 'and gets the event when it is there');

create('stream', "kinesis:us-east-2:$account:stream/s1", '{stream}', rest => q(format => 'raw', backoff_base => '10 ms', max_in_flight => 100));
$id = ask(q{SELECT outbox.emit_bytes('stream', '\x00ff0180'::bytea, 'application/avro', key => 'ключ')});
wait_status($node, $id, 'delivered', 'an event for Kinesis');
($got) = stored('s1');
is($got->{Bytes}, "\x00\xff\x01\x80", 'its bytes');
is($got->{PartitionKey}, "\x{43a}\x{43b}\x{44e}\x{447}", 'its key');
fake(rules => [ { fail => { with => '"k3"', code => 'ProvisionedThroughputExceededException', message => 'Rate exceeded' }, times => 1 } ]);
ask("SELECT count(outbox.emit('stream', jsonb_build_object('n', n), key => 'k' || n % 10)) FROM generate_series(1, 100) n");
endpoint_shows($node, 'stream', 'delivered = 101 AND failed_attempts = 1', 'a record that a shard has no room for is sent again');
%last = ();
$disorder = 0;
foreach my $e (grep { $_->{Bytes} =~ /n/ } stored('s1'))
{
	my ($number) = $e->{Bytes} =~ /"n": (\d+)/;
	$disorder++ if ($last{ $e->{PartitionKey} } // 0) >= $number;
	$last{ $e->{PartitionKey} } = $number;
}
is($disorder, 0, 'and each key is in order');

create('bus', "events:us-east-2:$account:event-bus/b1", '{bus}', config => qq({"endpoint_url": "http://127.0.0.1:$port", "source": "shop"}), rest => q(format => 'raw'));
$id = emit($node, 'bus', '{"n": 1}', q{type => 'order.paid'});
wait_status($node, $id, 'delivered', 'an event for EventBridge');
($got) = stored('b1');
is(join(' ', @$got{qw(Source DetailType Detail)}, @{ $got->{Resources} }), qq(shop order.paid {"n": 1} urn:uuid:$id), 'with its source, type, body and id');
is(ask("SELECT round(extract(epoch FROM created_at) * 1000) - round($got->{Time} * 1000) BETWEEN -1 AND 1 FROM outbox.events WHERE id = '$id'"), 't', 'and its time');
$id = emit($node, 'bus', '[1]');
wait_status($node, $id, 'dead', 'a body that is no object is dead');

# A database that is not in UTF-8
$node->safe_psql('postgres', "CREATE DATABASE latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
ask('CREATE EXTENSION outbox', 'latin1');
ask("SELECT outbox.create_endpoint('bus', 'arn:aws:events:us-east-2:$account:event-bus/b2', '{bus}', config => '{\"endpoint_url\": \"http://127.0.0.1:$port\", \"source\": \"Zo\\u00eb\"}', credentials => $keys, format => 'raw')", 'latin1');
ask(q(SELECT outbox.emit('bus', '{"n": 1}')), 'latin1');
ok(wait_until(sub { scalar stored('b2') }, 'an event of the other database'), 'its events are delivered');
is((stored('b2'))[0]{Source}, "Zo\x{eb}", 'the source is UTF-8');

# What the caller does not say is the sink's
create('unsaid', "sqs:eu-central-1:$account:unsaid", '{unsaid}');
is(ask("SELECT concat_ws(' ', format, max_in_flight, timeout) FROM outbox.endpoints WHERE name = 'unsaid'"),
	'cloudevents 100 00:00:15', 'the format, the number in flight and the time of this sink');

# What create_endpoint refuses
my $bad = q('{"access_key_id": "a", "secret_access_key": "b"}');
my %words = (
	"'arn:aws:sqs:eu-central-1:12345:orders', $bad, NULL" => 'the ARN is not arn:aws:SERVICE:REGION:ACCOUNT:RESOURCE',
	"'arn:aws:s3:eu-central-1:$account:orders', $bad, NULL" => 'none of sqs, sns, events, kinesis',
	"'arn:aws:kinesis:eu-central-1:$account:orders', $bad, NULL" => 'last part',
	"'arn:aws-x:sqs:eu-central-1:$account:orders', $bad, NULL" => 'partition is not known',
	"'aws://host/orders', $bad, NULL" => 'no ARN',
	"'arn:aws:sqs:eu-central-1:$account:orders', NULL, NULL" => 'credentials without access_key_id',
	"'arn:aws:sqs:eu-central-1:$account:orders', '{\"password\": \"x\"}', NULL" => 'unknown name in credentials',
	"'arn:aws:sqs:eu-central-1:$account:orders', $bad, '{\"endpoint_url\": \"http://h/path\"}'" => 'not a scheme, a host and a port',
	"'arn:aws:sqs:eu-central-1:$account:orders', $bad, '{\"endpoint_url\": \"ftp://h\"}'" => 'neither https',
	(map { ("'arn:aws:sqs:eu-central-1:$account:orders', $bad, '{\"endpoint_url\": \"https://$_\"}'" => 'a name that cannot be looked up') }
		'-a.example', 'a' x 64 . '.example:8443', 'a..example/'),
	(map { ("'arn:aws:sqs:eu-central-1:$account:orders', $bad, '{\"endpoint_url\": \"http://$_\"}'" => 'neither a name nor an address') }
		'1.2.3.4.5', '[abc]', '256.1.1.1:80'),
	"'arn:aws:sqs:eu-central-1:$account:orders', $bad, '{\"endpoint_url\": \"https://10.0.0.1:8443\"}'" => 'the address in the URL is private',
	"'arn:aws:sqs:eu-central-1:$account:orders', $bad, '{\"endpoint_url\": \"http://1.1.1.1\"}'" => 'plain http is allowed to addresses in',
	"'arn:aws:sqs:eu-central-1:$account:orders', $bad, '{\"source\": \"x\"}'" => 'source cannot be used',
	"'arn:aws:sqs:eu-central-1:$account:orders', $bad, '{\"proxy\": \"x\"}'" => 'unknown name "proxy" in config');
foreach my $args (sort keys %words)
{
	my ($url, $credentials, $config) = $args =~ /^('[^']*'), ('[^']*'|NULL), ('[^']*'|NULL)$/;
	my ($rc, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.create_endpoint('bad', $url, credentials => $credentials, config => $config)");
	my $hint = $config =~ /(endpoint_url|source)/ && $words{$args} !~ /name|address/ ? $1 : 'A|Use|The|Write';
	like($err, qr/ERROR:  22023: .*\Q$words{$args}\E.*HINT:.*(?:$hint)/s, "refused: $words{$args}");
}
foreach my $notice ([ "sqs:eu-central-1:$account:a", 1 ], [ "sqs:eu-central-1:$account:a.fifo", 0 ], [ "kinesis:eu-central-1:$account:stream/a", 0 ], [ "events:eu-central-1:$account:event-bus/a", 1 ])
{
	my (undef, undef, $err) = $node->psql('postgres', "SELECT outbox.create_endpoint('note', 'arn:aws:$notice->[0]', '{none}', credentials => $keys)");
	is($err =~ /NOTICE:  .*not keep the order of a key/ ? 1 : 0, $notice->[1], "what is said of the order: $notice->[0]");
	ask("SELECT outbox.drop_endpoint('note')");
}

# All requests were signed as they must be, and the worker has lived through it
is(scalar(grep { ($_->{refusal} // '') eq 'SignatureDoesNotMatch' && $_->{name} ne 'keys' } requests()), 0, 'no other signature was wrong');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|FATAL:(?!  terminating)|was terminated by signal/, 'no process has crashed');
unlike(slurp_file($node->logfile), qr/wJalrXUtn|tok\/en/, 'no key is in the log');
done_testing();
