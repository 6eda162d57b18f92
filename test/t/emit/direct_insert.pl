# An INSERT into outbox.outgoing, or into the log, is as good as emit(): the same checks and wake-up.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A wake-up that is lost would show: the timer comes after a minute.
my $node = outbox_node('main', conf => "outbox.wakeup_interval = '1min'\n");
my $receiver = OutboxTest::Receiver->new('main');
my ($rc, $out, $err, $id, @got);

endpoint($node, $receiver, 'all', '/ok/a');
endpoint($node, $receiver, 'raw', '/ok/raw', "format => 'raw'");
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE app LOGIN;
GRANT USAGE ON SCHEMA outbox TO app;
GRANT INSERT (id, topic, payload, body, content_type, key, type, headers, expires_at)
	ON outbox.events TO app;
GRANT SELECT (id) ON outbox.events TO app;
CREATE ROLE mapper LOGIN;
SELECT outbox.grant_emit('mapper');
SQL

sub app
{
	my ($sql) = @_;
	return $node->psql('postgres', $sql, extra_params => [ '-U', 'app' ]);
}

# So many events are delivered, and the request of none was made late.
sub at_once
{
	my ($n, $which, $name) = @_;
	return ok(
		wait_sql($node, "SELECT count(*) = $n AND max(a.started_at - e.created_at) < '30 s'"
			  . " FROM outbox.attempts a JOIN outbox.events e ON e.id = a.event_id WHERE a.endpoint = 'all' AND e.$which"),
		$name);
}

sub arrives
{
	my ($sql, $name) = @_;
	($rc, $out, $err) = app($sql);
	is($err, '', "$name: no error");
	@got = $receiver->wait_delivered(1, path => '/ok/a', id => $out);
	at_once(1, "id = '$out'", "$name: delivered, and at once");
	return $got[0];
}

my $request = arrives(
	q{INSERT INTO outbox.events (topic, payload) VALUES ('order.created', '{"n": 1}') RETURNING id},
	'INSERT');
is($request->{signature}, 'valid', 'signed');
like($request->{id}, qr/^.{14}7/, 'the id is a UUIDv7');

$request = arrives(<<'SQL', 'an ORM that sends NULL for whatever it does not set');
INSERT INTO outbox.events (id, topic, payload, body, content_type, key, type, headers, expires_at)
VALUES (NULL, 'order.created', '{"n": 2}', NULL, NULL, NULL, NULL, NULL, NULL) RETURNING id
SQL

$request = arrives(<<'SQL', 'everything given');
INSERT INTO outbox.events (id, topic, payload, key, type, headers, expires_at)
VALUES ('0190b5c8-0000-7000-8000-000000000001', 'order.created', '{"n": 3}', 'k',
	'OrderCreated', '{"x-tenant": "acme"}', now() + interval '1 hour') RETURNING id
SQL
is($request->{id}, '0190b5c8-0000-7000-8000-000000000001', 'the id is kept');
is($request->{headers}{'outbox-type'}, 'OrderCreated', 'the type');
is($request->{headers}{'x-tenant'}, 'acme', 'the header');
is($request->{key}, 'k', 'the key');

$request = arrives(<<'SQL', 'bytes');
INSERT INTO outbox.events (topic, body, content_type)
VALUES ('order.pdf', '\x00ff', 'application/pdf') RETURNING id
SQL
my ($raw) = $receiver->wait_for(1, path => '/ok/raw', id => $request->{id});
is($raw->{headers}{'content-type'}, 'application/pdf', 'bytes: their type');
is($raw->{length}, 2, 'bytes: as they are');

# COPY, multi-row, INSERT … SELECT
my $before = () = $receiver->delivered(path => '/ok/a');
($rc, $out, $err) = app(<<'SQL');
COPY outbox.events (topic, payload, key) FROM stdin;
order.copied	{"n": 1}	c
order.copied	{"n": 2}	c
order.copied	{"n": 3}	c
\.
INSERT INTO outbox.events (topic, payload, key)
	SELECT 'order.copied', jsonb_build_object('n', n), 'c' FROM generate_series(4, 10) n;
SQL
is($err, '', 'COPY');
$receiver->wait_delivered($before + 10, path => '/ok/a');
is_deeply(
	[
		map { JSON::PP::decode_json($_->{body})->{data}{n} }
		  $receiver->requests(path => '/ok/a', key => 'c')
	],
	[ 1 .. 10 ],
	'COPY and INSERT … SELECT, in order');

# The view for ORMs: the row comes back, and its event arrives.
sub mapper
{
	my ($sql) = @_;
	return $node->psql('postgres', $sql, extra_params => [ '-U', 'mapper' ]);
}
($rc, $id, $err) = mapper(
	q{INSERT INTO outbox.outgoing (topic, key, payload) VALUES ('order.mapped', 'm', '{"n": 1}') RETURNING id});
is($err, '', 'outbox.outgoing: no error');
$receiver->wait_delivered(1, path => '/ok/a', id => $id);
($rc, $out, $err) = mapper("SELECT count(*) FROM outbox.outgoing");
is($out, '0', 'the next transaction sees nothing of it');

# Some clients send the JSON null for headers that are not set.
$id = $node->safe_psql('postgres',
	q{INSERT INTO outbox.events (topic, payload, headers) VALUES ('order.null', '{}', 'null') RETURNING id});
my ($null) = $receiver->wait_delivered(1, path => '/ok/a', id => $id);
is($null->{signature}, 'valid', 'headers that are the JSON null: delivered');

# A row of another log may have the number of this transaction.
$node->safe_psql('postgres', "SET session_replication_role = replica;"
	  . " INSERT INTO outbox.events (topic, payload, epoch, xid) SELECT 'of.another', '{}', 12345, x"
	  . " FROM (SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::int8 + n)::text::xid8 AS x FROM generate_series(0, 200) n) x");
($rc, $out, $err) = mapper("BEGIN; SELECT outbox.emit('order.own', '{}') \\g /dev/null
SELECT string_agg(topic, ',') FROM outbox.outgoing; COMMIT");
is($out, 'order.own', 'nor a row of another log');
is( $node->safe_psql('postgres', "SELECT count(*) > 0 FROM outbox.events WHERE epoch = 12345"
		  . " AND xid IN (SELECT xid FROM outbox.events WHERE topic = 'order.own')"),
	't', 'though there is one with its xid');
($rc, $out, $err) = mapper("SET enable_seqscan = off; BEGIN; SELECT outbox.emit('order.own', '{}') \\g /dev/null
"
	  . "EXPLAIN SELECT * FROM outbox.outgoing WHERE id = '$id'; COMMIT");
unlike($out, qr/Seq Scan/, 'a row is found by an index');

# A trigger that emits, during COPY as well
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE orders (id int PRIMARY KEY, total numeric);
CREATE FUNCTION emit_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM outbox.emit('orders', to_jsonb(NEW), key => NEW.id::text);
	RETURN NULL;
END $$;
CREATE TRIGGER outbox AFTER INSERT OR UPDATE ON orders
	FOR EACH ROW EXECUTE FUNCTION emit_order();
COPY orders FROM stdin;
1	9.90
2	19.90
\.
UPDATE orders SET total = 10 WHERE id = 1;
SQL
wait_settled($node);
is_deeply(
	[
		sort map { $_->{id} . ':' . (0 + $_->{total}) }
		  map { JSON::PP::decode_json($_->{body})->{data} }
		  grep { $_->{headers}{'outbox-topic'} eq 'orders' }
		  $receiver->delivered(path => '/ok/a')
	],
	[ '1:10', '1:9.9', '2:19.9' ],
	'a trigger that emits, during COPY as well');

# Columns that a writer may not set
foreach my $column (qw(seq xid epoch created_at))
{
	my $value = $column eq 'created_at' ? 'now()' : "'1'";
	($rc, $out, $err) = app(
		"INSERT INTO outbox.events (topic, payload, $column) VALUES ('a', '{}', $value)");
	isnt($rc, 0, "$column is the log's own");
}
my %bad = (
	'a topic with a blank' => q{(topic, payload) VALUES ('a b', '{}')},
	'a reserved topic' => q{(topic, payload) VALUES ('outbox.mine', '{}')},
	'no topic' => q{(topic, payload) VALUES (NULL, '{}')},
	'neither payload nor body' => q{(topic) VALUES ('a')},
	'payload and body' => q{(topic, payload, body, content_type) VALUES ('a', '{}', '', 'a/b')},
	'a body without a type' => q{(topic, body) VALUES ('a', '\x00')},
	'headers that are no object' => q{(topic, payload, headers) VALUES ('a', '{}', '[]')},
	'a header that is no string' => q{(topic, payload, headers) VALUES ('a', '{}', '{"x": 1}')},
	'a header with a line break' => q{(topic, payload, headers) VALUES ('a', '{}', '{"x": "a\nb"}')},
	'a forbidden header' => q{(topic, payload, headers) VALUES ('a', '{}', '{"Host": "b"}')},
	'a reserved header' => q{(topic, payload, headers) VALUES ('a', '{}', '{"Webhook-Id": "b"}')},
	'a key that is too long' => q{(topic, payload, key) VALUES ('a', '{}', repeat('k', 2000))});
foreach my $name (sort keys %bad)
{
	($rc, $out, $err) = app("INSERT INTO outbox.events $bad{$name}");
	isnt($rc, 0, "refused: $name");
}
foreach my $sql (
	'DELETE FROM outbox.events', "UPDATE outbox.events SET topic = 'b'",
	'SELECT payload FROM outbox.events', 'TRUNCATE outbox.events')
{
	isnt((app($sql))[0], 0, "an emitter may not: $sql");
}

# Triggers do not fire there.  What is accepted is in the log, and what is not is refused.
my $events = $node->safe_psql('postgres', 'SELECT count(*) FROM outbox.events');
my $replica = 'SET session_replication_role = replica;';
foreach my $sql ("INSERT INTO outbox.outgoing (topic, payload) VALUES ('order.replica', '{}')",
	"INSERT INTO outbox.outgoing (id, topic, payload) VALUES (gen_random_uuid(), 'order.replica', '{}') RETURNING id",
	"WITH w AS (INSERT INTO outbox.outgoing (topic, payload) SELECT 'order.replica', '{}' RETURNING id) SELECT count(*) FROM w",
	"COPY outbox.outgoing (topic, payload) FROM STDIN")
{
	like(($node->psql('postgres', "$replica $sql;\norder.replica\t{}\n\\.\n"))[2], qr/ERROR:  outbox.outgoing emits nothing while session_replication_role is replica/, 'as replica: ' . substr($sql, 0, 40));
}
$node->safe_psql('postgres', "$replica SELECT outbox.emit('order.replica', '{}'); INSERT INTO outbox.events (topic, payload) VALUES ('order.replica', '{}'); SELECT count(*) FROM outbox.outgoing");
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.events') - $events, 2, 'emit() and an INSERT into the table emit there');
$node->safe_psql('postgres', 'CREATE DATABASE without');
is( $node->safe_psql('without', "CREATE SCHEMA outbox CREATE TABLE outgoing (n int); $replica INSERT INTO outbox.outgoing VALUES (1) RETURNING n"),
	1, 'a table of that name is none of outbox, where the extension is not installed');

# Not a wake-up for each row, but one for each commit that has any.  None is lost with
# fifty sessions at once.
my $count = () = $receiver->delivered(path => '/ok/a');
$node->pgbench(
	'--no-vacuum --client=50 --jobs=2 --transactions=10',
	0,
	[qr/processed: 500\/500/],
	[qr/^$/],
	'fifty sessions insert',
	{
		'insert' =>
		  q{INSERT INTO outbox.events (topic, payload) VALUES ('order.bench', '{}');}
	});
$receiver->wait_delivered($count + 500, path => '/ok/a');
at_once(500, "topic = 'order.bench'", 'all 500 within seconds of their commits');
is(scalar(() = $receiver->delivered(path => '/ok/a')),
	$count + 500, 'each once');

$node->stop;
done_testing();
