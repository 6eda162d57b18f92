# A restore brings back every event, whatever the settings of the server say of its size.
# A new event of that size is refused in every way.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.max_payload_size = '4 MB'\n");
my $small = outbox_node('small', extension => 0, conf => "outbox.max_payload_size = '1 kB'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
my $large = q{to_jsonb(repeat('x', 2000000))};

endpoint($node, $receiver, 'all', '/ok/a', "topics => '{shop.*}'");
emit($node, 'shop.small', '{"n": 1}');
my $id = ask("SELECT outbox.emit('shop.large', $large)");
my $bytes = ask("SELECT outbox.emit_bytes('shop.bytes', decode(repeat('00', 1500000), 'hex'), 'a/b')");
my $direct = ask("INSERT INTO outbox.events (topic, payload) VALUES ('shop.direct', $large) RETURNING id");
$receiver->wait_delivered(1, id => $_) foreach $id, $bytes, $direct;
wait_settled($node);
ask("SELECT outbox.emit('shop.later', $large, deliver_at => now() + interval '1 day')");

# A restore
my $what = "SELECT count(*), sum(length(payload::text)), sum(length(body)) FROM outbox.events";
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres') ], 'pg_dump');
$small->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', $small->connstr('postgres'), $dump ],
	'pg_restore where the limit is lower');
is($small->safe_psql('postgres', $what), ask($what), 'every event is there');
is($small->safe_psql('postgres', 'SELECT count(*) FROM outbox.scheduled'), 1, 'the scheduled one as well');
my ($rc, $out, $err) = $small->psql('postgres', 'SELECT outbox.adopt()');
is($rc, 0, 'and is adopted') or diag($err);

# What is new
$small->safe_psql('postgres', <<'SQL');
CREATE ROLE app;
GRANT USAGE ON SCHEMA outbox TO app;
GRANT INSERT (topic, payload, body, content_type) ON outbox.events TO app;
SQL
my $too_large = q{to_jsonb(repeat('x', 2000))};
my $columns = 'INSERT INTO outbox.events (topic, payload)';
foreach my $role (undef, 'app')
{
	my $as = $role ? "SET ROLE $role; " : '';
	my $who = $role // 'the owner';

	foreach my $sql ("$columns VALUES ('a', $too_large)",
		"$columns VALUES ('a', '1'), ('a', '2'), ('a', $too_large)",
		"$columns SELECT 'a', p FROM (VALUES ('1'::jsonb), ($too_large)) v (p) ORDER BY length(p::text)",
		"INSERT INTO outbox.events (topic, body, content_type) VALUES ('a', convert_to(repeat('x', 2000), 'UTF8'), 'a/b')",
		"COPY outbox.events (topic, payload) FROM stdin;\na\t1\na\t\"" . 'x' x 2000 . "\"\n\\.\n")
	{
		($rc, $out, $err) = $small->psql('postgres', "\\set VERBOSITY verbose\n$as$sql", on_error_stop => 0);
		like($err, qr/ERROR:  54000: (?:payload|body) of an event is too large/,
			"refused for $who: " . substr($sql, 0, 90));
	}
}
($rc, $out, $err) = $small->psql('postgres', "SELECT outbox.emit('a', $too_large)");
like($err, qr/payload of an event is too large/, 'emit() refuses it, too');
is($small->safe_psql('postgres', "SELECT count(*) FROM outbox.events WHERE topic = 'a'"), 0, 'and none of it is there');

$node->stop;
$small->stop;
done_testing();
