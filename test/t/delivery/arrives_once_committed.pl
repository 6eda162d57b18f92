# An event arrives at each endpoint that subscribes to its topic once its transaction commits.
# It arrives in the endpoint's format, signed.  A paused or dropped endpoint gets nothing.
use strict;
use warnings;

use Encode ();
use HTTP::Tiny;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my ($id, @got, $request);

is( $node->safe_psql(
		'postgres', "SELECT extversion FROM pg_extension WHERE extname = 'outbox'"),
	'1.0', 'the extension is there');
ok(worker_pid($node), 'a worker comes by itself');
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"),
	'outbox.status says running');

# An endpoint, an event
endpoint($node, $receiver, 'shop', '/ok/shop');
$id = emit($node, 'order.created', '{"order": 1, "total": 9.90}',
	q{key => 'customer ü 7', headers => '{"x-tenant": "acme"}'});
like($id, qr/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
	'emit returns a UUIDv7');
($request) = $receiver->wait_for(1, path => '/ok/shop');
is($request->{id}, $id, 'webhook-id is the event id');
is($request->{method}, 'POST', 'it is a POST');
is($request->{signature}, 'valid', 'the signature is valid');
is(Encode::encode('UTF-8', $request->{key}),
	'customer ü 7', 'outbox-key, percent-decoded');
my $h = $request->{headers};
is($h->{'content-type'}, 'application/json', 'Content-Type');
like($h->{'user-agent'}, qr{^outbox/}, 'User-Agent');
is($h->{'idempotency-key'}, "\"$id\"", 'Idempotency-Key is a quoted string');
is($h->{'outbox-topic'}, 'order.created', 'outbox-topic');
is($h->{'outbox-type'}, 'order.created', 'outbox-type is the topic by default');
is($h->{'outbox-attempt'}, '1', 'outbox-attempt');
ok(!exists $h->{'outbox-sequence'}, 'no number that counts what others are sent');
is($h->{'x-tenant'}, 'acme', "the event's own header");
ok(!exists $h->{expect}, 'no Expect: 100-continue');
ok(!exists $h->{'outbox-redelivery'}, 'no outbox-redelivery on a delivery');
my $body = JSON::PP::decode_json($request->{body});
is_deeply(
	[ sort keys %$body ],
	[ 'data', 'timestamp', 'type' ],
	'the body has the recommended shape');
is($body->{data}{order}, 1, 'data is the payload');
like($body->{timestamp}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)$/,
	'timestamp is ISO 8601');

wait_status($node, $id, 'delivered', 'outbox.deliveries says delivered');

# A rolled-back event is not sent
$node->safe_psql('postgres', <<'SQL');
BEGIN;
SELECT outbox.emit('order.created', '{"order": 666}'::jsonb);
ROLLBACK;
SQL
$id = emit($node, 'order.created', '{"order": 2}');
@got = $receiver->wait_for(2, path => '/ok/shop');
is($got[1]{id}, $id, 'the next event follows, nothing of the rollback');

# json and text, NULL keys
$node->safe_psql('postgres', <<'SQL');
SELECT outbox.emit('order.created', json_build_object('order', 3));
SELECT outbox.emit('order.created', '{"order": 4}'::text);
SQL
@got = $receiver->wait_for(4, path => '/ok/shop');
is_deeply(
	[ sort map { JSON::PP::decode_json($_->{body})->{data}{order} } @got ],
	[ 1, 2, 3, 4 ],
	'json and text payloads arrive as well');

# Topics, formats
endpoint($node, $receiver, 'raw', '/ok/raw',
	"topics => '{invoice.*}', format => 'raw'");
emit($node, 'invoice.paid', '{"b": 1, "a": [1, 2]}');
emit($node, 'invoice.line.added', '{}');
$node->safe_psql('postgres',
	q{SELECT outbox.emit_bytes('invoice.pdf', '\x00ff0a0d25'::bytea, 'application/pdf')});
@got = $receiver->wait_for(3, path => '/ok/raw');
my ($json) = grep { $_->{headers}{'outbox-topic'} eq 'invoice.paid' } @got;
is_deeply(
	JSON::PP::decode_json($json->{body}),
	{ a => [ 1, 2 ], b => 1 },
	'raw is the payload');
my ($pdf) = grep { $_->{headers}{'outbox-topic'} eq 'invoice.pdf' } @got;
is($pdf->{headers}{'content-type'}, 'application/pdf', "bytes keep their type");
is($pdf->{length}, 5, 'and their length');
is($pdf->{signature}, 'valid', 'and are signed');
$receiver->wait_delivered(7, path => '/ok/shop');
is(scalar(grep { $_->{headers}{'outbox-topic'} !~ /^invoice/ }
		  $receiver->requests(path => '/ok/raw')),
	0, 'topics are respected');

# What the views say
ok(wait_settled($node), 'all is settled');
is( $node->safe_psql(
		'postgres', "SELECT count(*) FROM outbox.deliveries WHERE status <> 'delivered'"),
	'0', 'outbox.deliveries: all delivered');
ok( wait_sql(
		$node,
		"SELECT state = 'active' AND delivered = 7 AND pending = 0 AND dead = 0"
		  . " FROM outbox.stats WHERE endpoint = 'shop'"),
	'outbox.stats counts');
ok( wait_sql(
		$node, "SELECT count(*) = 10 AND bool_and(status_code = 200)"
		  . " FROM outbox.attempts"),
	'outbox.attempts has each request');
is( $node->safe_psql('postgres', 'SELECT count(*) FROM outbox.workers'),
	'1', 'outbox.workers');

# Nothing waits in the worker's transactions
ok( wait_sql(
		$node, "SELECT count(*) = 0 FROM pg_stat_activity"
		  . " WHERE backend_type LIKE 'outbox%' AND backend_xmin IS NOT NULL"),
	'the idle worker holds no snapshot');

# Pause and resume
$node->safe_psql('postgres', "SELECT outbox.pause_endpoint('shop')");
ok(wait_sql($node, "SELECT state = 'paused' FROM outbox.stats WHERE endpoint = 'shop'"),
	'paused');
$id = emit($node, 'order.created', '{"order": 5}');
nothing_arrives($receiver, 'a paused endpoint gets nothing', 0.5, path => '/ok/shop');
$node->safe_psql('postgres', "SELECT outbox.resume_endpoint('shop')");
$receiver->wait_delivered(1, path => '/ok/shop', id => $id);
pass('resumed: it goes on where it was');

# Drop
wait_settled($node);
$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('raw')");
$id = emit($node, 'invoice.paid', '{}');
$receiver->wait_delivered(1, path => '/ok/shop', id => $id);
is(scalar(() = $receiver->requests(path => '/ok/raw', id => $id)),
	0, 'a dropped endpoint gets nothing');
is(scalar(grep { $_->{signature} ne 'valid' } $receiver->requests),
	0, 'every signature was valid');

is(HTTP::Tiny->new->post($receiver->url('/ok/array'), { content => $_ })->{status}, 200, "the tests' receiver takes $_ for no batch")
  foreach '[1, "a"]', '[{"a": 1}]', '[a';

$node->stop;
done_testing();
