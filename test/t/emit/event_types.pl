# The catalogue of event types: with outbox.require_event_types only listed topics are emitted.
# A session sees each change of the catalogue, and a dump has it.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use JSON::PP;
use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql, @more) = @_;
	return $node->safe_psql('postgres', $sql, @more);
}

# What psql says of an error, with its SQLSTATE
sub refused
{
	my ($sql, $state, $text, $hint, $name, @more) = @_;
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql", @more);
	like($err, qr/^.*ERROR:  $state: $text.*^HINT:  $hint/ms, $name);
	return;
}

ask(<<'SQL');
CREATE ROLE app LOGIN;
SELECT outbox.grant_emit('app');
CREATE ROLE operator LOGIN;
SELECT outbox.grant_to('operator', 'operate');
CREATE TABLE public.parcels (id int PRIMARY KEY);
GRANT INSERT ON public.parcels TO app;
CREATE TRIGGER tell AFTER INSERT ON public.parcels FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('parcel.changed', 'id');
SQL
endpoint($node, $receiver, 'all', '/ok/all');
endpoint($node, $receiver, 'own', '/ok/own', "topics => '{outbox.*}'");

# Entries
my @operator = (extra_params => [ '-U', 'operator' ]);
my @app = (extra_params => [ '-U', 'app' ]);
ask(q{SELECT outbox.set_event_type('order.shipped', 'It has left.', '{"type": "object"}', '{"order": 4711}')}, @operator);
is(ask('SELECT topic, description, schema, example FROM outbox.event_types', @operator),
	'order.shipped|It has left.|{"type": "object"}|{"order": 4711}', 'an operator lists a topic');
ask(q{SELECT outbox.set_event_type('order.shipped', example => '{"order": 1}')}, @operator);
is(ask('SELECT topic, description, schema, example FROM outbox.event_types'), 'order.shipped|||{"order": 1}', 'and replaces its entry');
refused(q{SELECT outbox.set_event_type(NULL)}, '22004', 'topic must not be null', 'Pass the topic', 'no topic');
refused(q{SELECT outbox.set_event_type('a b')}, '22023', 'invalid topic "a b"', 'A topic is made of', 'no such topic');
refused(q{SELECT outbox.set_event_type('order.*')}, '22023', 'invalid topic', 'A topic is made of', 'a pattern');
refused(q{SELECT outbox.set_event_type('outbox.dead')}, '42939', 'topic "outbox.dead" is reserved', 'Topics that', 'a topic of outbox');
refused(q{SELECT outbox.set_event_type('a', schema => '[1]')}, '22023', 'invalid schema of event type "a": it cannot be \[1\]', 'A JSON Schema is', 'no schema');
foreach my $schema ('"object"', '{"type": "strnig"}', '{"type": []}', '{"type": ["string", 1]}', '{"properties": ["id"]}',
	'{"properties": {"id": {"type": "int"}}}', '{"properties": {"a": {"items": [{}, {"not": 1}]}}}', '{"required": "id"}',
	'{"required": [1]}', '{"maxLength": "7"}', '{"minItems": -1}', '{"maxItems": 0.5}', '{"multipleOf": 0}', '{"anyOf": {}}',
	'{"$defs": {"a": null}}', '{"pattern": 1}', '{"$schema": 1}', '{"dependencies": {"a": "b"}}',
	'{"$schema": "http://json-schema.org/draft-07/schema#", "type": "strnig"}')
{
	refused("SELECT outbox.set_event_type('a', schema => '$schema')", '22023', 'invalid schema of event type "a": .*cannot be', 'A JSON Schema', "no schema: $schema");
}
foreach my $schema ('true', '{}', '{"type": ["string", "null"], "x-own": 1, "default": {"type": 1}, "enum": [{"type": 1}]}',
	'{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {"type": {"const": {"type": 7}}}, "required": ["type"], "additionalProperties": false}',
	'{"items": [true, {"minimum": -0.5, "exclusiveMinimum": true}], "dependencies": {"a": ["b"], "c": {"minProperties": 1.0}}}',
	'{"$schema": "https://example.com/dialect", "type": "uuid"}')
{
	is(ask("SELECT outbox.set_event_type('a', schema => '$schema')"), '', "a schema: $schema");
}
ask(q{SELECT outbox.drop_event_type('a')});
refused("SELECT outbox.set_event_type('a', $_)", '54000', 'schema or example of event type "a" is too large', 'Use ones', "a large $_")
  foreach q{example => to_jsonb(repeat('x', 1048577))}, q{schema => jsonb_build_object('title', repeat('x', 1048577))};
refused(q{SELECT outbox.drop_event_type(NULL)}, '22004', 'topic must not be null', 'SELECT topic', 'drop nothing');
refused(q{SELECT outbox.drop_event_type('a')}, '42704', 'event type "a" does not exist', 'SELECT topic', 'drop what is not there');
ask(q{SELECT outbox.drop_event_type('a', if_exists => true)});

# A test event is the example
my $test = ask(q{SELECT outbox.send_test('all', 'order.shipped')});
my ($got) = $receiver->wait_delivered(1, id => $test);
is_deeply(decode_json($got->{body})->{data}, { order => 1 }, 'a test event is the example');
$test = ask(q{SELECT outbox.send_test('all', 'order.shipped', '{"order": 2}')});
($got) = $receiver->wait_delivered(1, id => $test);
is_deeply(decode_json($got->{body})->{data}, { order => 2 }, 'unless it is given');

# Nothing is demanded at first
ask(q{SELECT outbox.emit('not.listed', '{}')}, @app);
my $scheduled = ask(q{SELECT outbox.emit('order.shipped', '{}', deliver_at => clock_timestamp() + '1 h')}, @app);

# Every way to emit.  A role that may only emit need not read the catalogue.
# With the restart the setting holds for the worker, too.
ask('ALTER DATABASE postgres SET outbox.require_event_types = on');
$node->restart;
my (undef, undef, $denied) = $node->psql('postgres', 'SET outbox.require_event_types = off', @app);
like($denied, qr/permission denied/, 'an emitter cannot switch it off');
my @ways = (
	[ 'emit', "SELECT outbox.emit('%s', '{}')" ],
	[ 'emit with a deliver_at', "SELECT outbox.emit('%s', '{}', deliver_at => clock_timestamp() + '1 h')" ],
	[ 'emit_bytes', "SELECT outbox.emit_bytes('%s', 'x', 'text/plain')" ],
	[ 'outgoing', "INSERT INTO outbox.outgoing (topic, payload) VALUES ('%s', '{}')" ],
	[ 'INSERT', "INSERT INTO outbox.events (topic, payload) VALUES ('%s', '{}')" ],
	[ 'COPY', "COPY outbox.events (topic, payload) FROM STDIN;\n%s\t{}\n\\.\n" ]);
foreach my $way (@ways)
{
	my ($name, $sql) = @$way;
	refused(sprintf($sql, 'order.shiped'), '22023', 'topic "order.shiped" is not listed in outbox.event_types',
		'outbox.require_event_types demands it', "$name: what is not listed", @app);
	my ($rc, undef, $err) = $node->psql('postgres', sprintf($sql, 'order.shipped'), @app);
	is($err, '', "$name: what is listed");
}
refused('INSERT INTO public.parcels VALUES (1)', '22023', 'topic "parcel.changed" is not listed', 'outbox.require', 'emit_change: not listed', @app);
ask(q{SELECT outbox.set_event_type('parcel.changed', example => '{"op": "insert"}')});
ask('INSERT INTO public.parcels VALUES (2)', @app);
refused(q{SELECT outbox.send_test('all', 'order.shiped')}, '22023', 'topic "order.shiped" is not listed', 'outbox.require', 'a test event');

# An endpoint cannot subscribe to what no event can have
foreach my $call ("create_endpoint('shiped', 'https://example.com/', '{order.shipped,order.shiped}')", "alter_endpoint('all', topics => '{invoice.*}')",
	"portal_create_endpoint('acme', 'https://example.com/', settings => '{\"topics\": [\"order.shiped\"]}')")
{
	refused("SELECT outbox.$call", '22023', 'no event type matches topic pattern "(?:order.shiped|invoice.\\*)"', 'Correct it, or use .*catalogue of event types', $call);
}
endpoint($node, $receiver, 'listed', '/ok/listed', "topics => '{order.*,parcel.changed,outbox.dead}'");
ask(q{SELECT outbox.alter_endpoint('listed', topics => '{*}'), outbox.alter_endpoint('listed', topics => '{order.shipped}')});
ask(q{BEGIN; SELECT outbox.drop_event_type('order.shipped'); SELECT outbox.alter_endpoint('listed', max_in_flight => 3); ROLLBACK});
ask(q{SELECT outbox.drop_endpoint('listed')});
pass('what it subscribes to already stays');

# Events of outbox itself
ask(q{SELECT outbox.send_test('all')});
endpoint($node, $receiver, 'gone', '/status/410', "topics => '{parcel.*}'");
ask(q{SELECT outbox.emit('parcel.changed', '{}')});
$receiver->wait_delivered(1, path => '/ok/own');
pass('an event of outbox itself is not concerned');

# A session that has emitted the topic before
my $session = $node->background_psql('postgres', on_error_stop => 0);
my $emit = q{SELECT 'emitted' FROM outbox.emit('order.shipped', '{}');};
sub emits
{
	my ($expected, $name) = @_;
	my $out = $session->query($emit);
	is($out, $expected ? 'emitted' : '', $name);
	return;
}
emits(1, 'it emits');
ask(q{SELECT outbox.drop_event_type('order.shipped')});
emits(0, 'until the topic is dropped');
ask(q{SELECT outbox.set_event_type('order.shipped')});
emits(1, 'and again when it is listed');
$session->query('BEGIN');
emits(1, 'also in a transaction');
ask(q{SELECT outbox.drop_event_type('order.shipped')});
emits(0, 'that has its locks already');
$session->query('ROLLBACK');
$session->query(q{BEGIN; SELECT outbox.set_event_type('order.shipped');});
emits(1, 'what the transaction itself has listed');
$session->query('ROLLBACK');
emits(0, 'counts no more when it is rolled back');
$session->query(q{BEGIN; SAVEPOINT a; SELECT outbox.set_event_type('order.shipped');});
emits(1, 'what a subtransaction has listed');
$session->query('ROLLBACK TO a');
emits(0, 'neither');
$session->query('ROLLBACK');
ask(q{SELECT outbox.set_event_type('order.shipped')});
$session->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM public.parcels;');
ask(q{SELECT outbox.drop_event_type('order.shipped')});
emits(0, 'an old snapshot does not list it');
$session->query('ROLLBACK');
emits(0, 'nor does the session when that has ended');
ask(q{INSERT INTO outbox.event_types (topic) VALUES ('order.shipped')});
emits(1, 'a plain INSERT lists it');
ask(q{TRUNCATE outbox.event_types});
emits(0, 'TRUNCATE drops it');
$session->quit;

# What was scheduled while it was listed comes, and a restore brings what is not listed
ask("UPDATE outbox.scheduled SET deliver_at = clock_timestamp() WHERE id = '$scheduled'");
ask(q{SELECT pg_reload_conf()});
$receiver->wait_delivered(1, id => $scheduled);
pass('what was scheduled is delivered, though its topic is not listed any more');
ask(q{SELECT outbox.set_event_type('order.shipped', 'It has left.')});
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres') ], 'pg_dump');
ask('CREATE DATABASE copy');
ask('ALTER DATABASE copy SET outbox.require_event_types = on');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('copy'), $dump ], 'pg_restore');
is($node->safe_psql('copy', 'SELECT topic, description FROM outbox.event_types'), 'order.shipped|It has left.', 'a dump has the catalogue');
is($node->safe_psql('copy', "SELECT count(*) > 0 FROM outbox.events WHERE topic = 'not.listed'"), 't', 'and events that are not listed');

# The catalogue as a document that tools for AsyncAPI read
SKIP:
{
	skip 'the document is not checked: npm did not bring the parser of AsyncAPI to test/conformance' unless -d "$top/test/conformance/node_modules/\@asyncapi/parser";
	my $parsed = sub {
		my ($document) = @_;
		my ($out, $err) = ('', '');
		IPC::Run::run([ 'node', "$top/test/conformance/asyncapi.mjs" ], '<', \$document, '>', \$out, '2>', \$err) or die "asyncapi.mjs: $err";
		return decode_json($out);
	};
	ask('TRUNCATE outbox.event_types');
	is_deeply($parsed->(ask('SELECT outbox.asyncapi()')), { errors => [], channels => {} }, 'an empty catalogue is a document');
	ask(<<'SQL');
SELECT outbox.set_event_type('order.shipped', 'It has left.', '{"type": "object", "properties": {"order": {"type": "integer"}}}', '{"order": 4711}', version => '2');
SELECT outbox.set_event_type('order-left', deprecated => 'Use order.shipped.');
SELECT outbox.set_event_type('a.b.C_d', 'Of a later draft', '{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "array", "prefixItems": [{"type": "string"}]}', '["x"]');
SELECT outbox.set_event_type('old', 'Of an earlier draft', '{"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "maximum": 3, "exclusiveMaximum": true}', '2');
SELECT outbox.set_event_type('any', schema => 'true', example => 'null'), outbox.set_event_type('none', schema => 'false');
SELECT outbox.set_event_type('refers', schema => '{"$id": "https://example.com/order", "$ref": "#/$defs/order", "$defs": {"order": {"type": "object", "properties": {"parent": {"$ref": "#"}, "total": {"$ref": "#/definitions/a~1~0 sum-0"}}}}, "definitions": {"a/~ sum-0": {"type": "number", "const": {"n\"$ref": "#0"}}}}');
SELECT outbox.set_event_type('refers.' || n, schema => s, example => s) FROM unnest(ARRAY[
	'{"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}', '{"type": "object", "$defs": {"a": {"$anchor": "a"}}, "items": [{"$ref": "#a"}]}',
	'{"type": "object", "items": {"$ref": "#/"}}', '{"type": "object", "items": {"$ref": "#/$defs/no~1ne"}}', '{"type": "object", "items": {"$ref": "#/%41"}}',
	'{"type": "object", "allOf": [true], "items": {"$ref": "#/allOf/-1"}}', '{"type": "object", "allOf": [true], "items": {"$ref": "#/allOf/00"}}', '{"type": "object", "allOf": [true], "items": {"$ref": "#/allOf/+0"}}',
	'{"type": "object", "title": "x", "items": {"$ref": "#/title"}}',
	'{"type": "object", "items": {"$ref": "https://example.invalid/"}}', '{"type": "object", "properties": {"$ref": {"type": "string"}}}']::jsonb[]) WITH ORDINALITY s (s, n);
SQL
	my $document = ask("SELECT outbox.asyncapi('Our shop', '2.1.0')", @operator);
	is_deeply(
		$parsed->($document),
		{
			errors => [],
			channels => {
				'order.shipped' => [ { name => 'order.shipped', type => 'object', tags => [], examples => [ { order => 4711 } ] } ],
				'order-left' => [ { name => 'order-left', tags => ['deprecated'], examples => [] } ],
				'a.b.C_d' => [ { name => 'a.b.C_d', type => 'array', tags => [], examples => [ ['x'] ] } ],
				'old' => [ { name => 'old', tags => [], examples => [2] } ],
				'none' => [ { name => 'none', tags => [], examples => [] } ],
				'refers' => [ { name => 'refers', type => 'object', tags => [], examples => [] } ],
				(map { ("refers.$_" => [ { name => "refers.$_", tags => [], examples => [] } ]) } 1 .. 11),
				'any' => [ { name => 'any', tags => [], examples => [undef] } ] } },
		'every entry is a channel with its message') or diag(encode_json($parsed->($document)));
	is_deeply(decode_json($document)->{components}{messages}{refers}{payload}{definitions}{'a/~ sum-0'}{const}, { 'n"$ref' => '#0' }, 'what is no $ref stays as it is');
	is_deeply(decode_json($document)->{info}, { title => 'Our shop', version => '2.1.0' }, 'with title and version');
	isnt(scalar @{ $parsed->($document =~ s/"action": "send"/"action": "sent"/r)->{errors} }, 0, 'the parser refuses what is none');
}

$node->stop;
done_testing();
