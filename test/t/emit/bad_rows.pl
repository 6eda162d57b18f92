# No row of outbox.events can put a control character into a request, through any column.
# The rows here came past the checks of the table.  Their deliveries become dead letters
# with a reason, and the worker goes on.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Header names that may never be set, and those that an event may not set, in upper and lower case
my @refused = map { ($_, lc, uc) } qw(Host Content-Length Transfer-Encoding Connection Expect Keep-Alive Proxy-Connection
	TE Trailer Upgrade Content-Type User-Agent Idempotency-Key Webhook-Id Webhook-X Outbox-Topic Outbox-X Ce-Id Ce-X);
my @refused_events = map { ($_, lc, uc) } qw(Authorization Proxy-Authorization Cookie);
my @formats = qw(standard raw cloudevents cloudevents-binary);
my $node = outbox_node('bad_rows');
my $receiver = OutboxTest::Receiver->new('bad_rows');

endpoint($node, $receiver, $_, "/ok/$_", "format => '$_'") foreach @formats;
my $worker = worker_pid($node);

# column lists and values => what is wrong
my @bad = (
	[ 'topic, payload', q{E'a\r\nX-Injected: 1', '{}'}, 'invalid topic' ],
	[ 'topic, payload', q{'a b', '{}'}, 'invalid topic' ],
	[ 'topic, payload', q{'ä', '{}'}, 'invalid topic' ],
	[ 'topic, payload', q{repeat('t', 100000), '{}'}, 'invalid topic' ],
	[ 'topic, type, payload', q{'t', E'a\r\nX-Injected: 1', '{}'}, 'invalid type' ],
	[ 'topic, type, payload', q{'t', E'a\nX-Injected: 1', '{}'}, 'invalid type' ],
	[ 'topic, type, payload', q{'t', '', '{}'}, 'invalid type' ],
	[ 'topic, type, payload', q{'t', repeat('t', 3000000), '{}'}, 'invalid type' ],
	[ 'topic, key, payload', q{'t', '', '{}'}, 'invalid key' ],
	[ 'topic, key, payload', q{'t', repeat('k', 3000000), '{}'}, 'invalid key' ],
	[ 'topic, headers, payload', q{'t', '{"x": "a\r\nX-Injected: 1"}', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '{"x\r\nX-Injected": "1"}', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '{"x y": "1"}', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '{"": "1"}', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '{"x": 1}', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '{"x": null}', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '{"x": {"y": "z"}}', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '{"x": ["y"]}', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '[]', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '["a", "b"]', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '1', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', '"x"', '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', jsonb_build_object('x', repeat('x', 3000000)), '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', jsonb_build_object(repeat('x', 9000), ''), '{}'}, 'invalid header' ],
	[ 'topic, headers, payload', q{'t', (SELECT jsonb_object_agg('x' || n, '') FROM generate_series(1, 30) n), '{}'}, 'invalid header' ],
	(map { [ 'topic, headers, payload', qq{'t', '{"$_": "x"}', '{}'}, 'invalid header' ] }
		@refused, @refused_events),
	[ 'topic, body, content_type', q{'t', '', E'text/plain\r\nX-Injected: 1'}, 'invalid content type' ],
	[ 'topic, body, content_type', q{'t', '', ''}, 'invalid content type' ],
	[ 'topic, body, content_type', q{'t', '', repeat('t', 3000000)}, 'invalid content type' ]);

# Every control character, in a type, a header and a content type
foreach my $c (1 .. 31, 127 .. 159)
{
	my $chr = "chr($c)";
	push @bad,
	  [ 'topic, type, payload', "'t', 'a' || $chr || 'b', '{}'", 'invalid type' ],
	  [ 'topic, headers, payload', "'t', jsonb_build_object('x', 'a' || $chr), '{}'", 'invalid header' ],
	  [ 'topic, body, content_type', "'t', '', 'a' || $chr", 'invalid content type' ];
}

# As many header lines as there can be: Python's http.server reads 99
my ($most) = $node->safe_psql('postgres', q{SELECT jsonb_object_agg('y' || n, 'z') FROM generate_series(1, 15) n});
endpoint($node, $receiver, 'most', '/ok/most',
	"topics => '{most}', tenant => 'acme', format => 'cloudevents-binary', headers => '$most'");
my $full = $node->safe_psql('postgres',
	q{SELECT outbox.emit('most', '{}', key => 'k', tenant => 'acme', headers => jsonb_object_agg('x' || n, 'z')) FROM generate_series(1, 29) n});
$receiver->wait_delivered(1, path => '/ok/most', id => $full);
wait_settled($node);
$node->safe_psql('postgres', "SELECT outbox.resend('most', '$full')");
is_deeply([ map { scalar keys %{ $_->{headers} } } $receiver->wait_for(2, path => '/ok/most', id => $full) ],
	[ 95, 96 ], 'a request with all headers that it can have, and the same once more');
$node->safe_psql('postgres', "SELECT outbox.drop_endpoint('most', discard => true)");

# The checks hold even where triggers do not fire
my ($rc, $out, $err) = $node->psql('postgres', <<'SQL');
SET session_replication_role = replica;
INSERT INTO outbox.events (topic, type, payload) VALUES ('t', E'a\nb', '{}');
SQL
like($err, qr/invalid type: it has a control character/, 'session_replication_role does not switch the checks off');

# Each name is refused where it is set, and says so.
foreach my $name (@refused, @refused_events)
{
	my $own = grep { $_ eq $name } @refused_events;
	($rc, $out, $err) = $node->psql('postgres', <<"SQL", on_error_stop => 0);
\\set VERBOSITY verbose
SELECT outbox.emit('t', '{}', headers => '{"$name": "x"}');
SELECT outbox.emit_bytes('t', '', 'a/b', headers => '{"$name": "x"}');
INSERT INTO outbox.events (topic, payload, headers) VALUES ('t', '{}', '{"$name": "x"}');
BEGIN;
SELECT outbox.create_endpoint('refused', 'https://a.example/', headers => '{"$name": "x"}');
ROLLBACK;
SELECT outbox.alter_endpoint('raw', headers => '{"$name": "x"}') WHERE NOT @{[ $own ? 'true' : 'false' ]};
SQL
	is(scalar(() = $err =~ /ERROR:  22023: invalid header "\Q$name\E": .*\n(?:.*\n){0,2}?HINT: /g), $own ? 3 : 5,
		"$name: refused by " . ($own ? 'events' : 'all'));
}

my $before = emit($node, 'good.before', '{}');
my $sql = "ALTER TABLE outbox.events DROP CONSTRAINT events_valid;\n";
$sql .= "INSERT INTO outbox.events ($_->[0]) VALUES ($_->[1]) RETURNING id;\n" foreach @bad;
my @ids = split /\n/, $node->safe_psql('postgres', $sql);
is(scalar @ids, scalar @bad, 'a superuser can bring in bad rows');

# A row without a payload and a body is taken for a forgotten one, and only a superuser
# can bring it in.  Bytes without a type get a general one.
my ($nothing, $untyped) = split /\n/, $node->safe_psql('postgres', <<'SQL');
INSERT INTO outbox.events (topic) VALUES ('good.nothing') RETURNING id;
INSERT INTO outbox.events (topic, body) VALUES ('good.untyped', '\x00') RETURNING id;
SQL
my $after = emit($node, 'good.after', '{}');

foreach my $id ($before, $untyped, $after)
{
	foreach my $format (@formats)
	{
		my ($r) = $receiver->wait_for(1, path => "/ok/$format", id => $id);
		is($r->{signature}, 'valid', "$format: the others are delivered");
	}
}
wait_settled($node);
my %wrong;
foreach my $row (split /\n/, $node->safe_psql('postgres', <<'SQL'))
SELECT event_id, string_agg(format('%s: %s (%s)', endpoint, reason, last_error), ', ' ORDER BY endpoint)
FROM outbox.dead_letters GROUP BY event_id
SQL
{
	my ($id, $text) = split /\|/, $row;
	$wrong{$id} = $text;
}
foreach my $i (0 .. $#bad)
{
	my ($columns, $values, $error) = @{ $bad[$i] };
	is($wrong{ $ids[$i] },
		join(', ', map { "$_: invalid event ($error)" } sort @formats),
		"dead in every format: $values");
}
is($node->safe_psql('postgres', "SELECT count(*) FROM outbox.deliveries WHERE event_id = '$nothing' AND status = 'forgotten'"),
	scalar(@formats), 'a row without a payload and a body counts as forgotten');
is(scalar(() = $receiver->requests), 2 + 4 * @formats, 'nothing of them was sent');
is(scalar(grep { exists $_->{headers}{'x-injected'} } $receiver->requests), 0, 'nothing was injected');

# An endpoint's own headers, changed in the table
endpoint($node, $receiver, 'patched', '/ok/patched',
	q{topics => '{patched}', headers => '{"x": "y"}'});
$node->safe_psql('postgres', <<'SQL');
UPDATE outbox.endpoint_settings SET headers = '{"x": "y\r\nX-Injected: 1"}' WHERE name = 'patched';
SELECT outbox.endpoint_changed(0);
SQL
my $patched;
foreach (1 .. 20)
{
	$patched = emit($node, 'patched', '{}');
	wait_settled($node);
	last if $node->safe_psql('postgres',
		"SELECT count(*) FROM outbox.dead_letters WHERE event_id = '$patched'");
}
is( $node->safe_psql('postgres',
		"SELECT reason, last_error FROM outbox.dead_letters WHERE event_id = '$patched' AND endpoint = 'patched'"),
	'invalid event|invalid endpoint header',
	'a bad header of an endpoint is a reason, too');
is(scalar(grep { exists $_->{headers}{'x-injected'} } $receiver->requests), 0, 'nothing was injected');
is(worker_pid($node), $worker, 'the worker went on');

$node->stop;
done_testing();
