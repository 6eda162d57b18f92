# The key and the payload of a row do not depend on the settings of the session that changes it.
# Nor does a time that a function is given.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# One table per type, each with that type as its key
my %value = (
	timestamptz => [ "'2026-01-02 03:04:05.678+05:30'", '2026-01-01 21:34:05.678+00' ],
	timestamp => [ "'2026-01-02 03:04:05'", '2026-01-02 03:04:05' ],
	date => [ "'2026-02-01'", '2026-02-01' ],
	timetz => [ "'03:04:05+05:30'", '03:04:05+05:30' ],
	interval => [ "'1 year 2 days 03:04:05'", '1 year 2 days 03:04:05' ],
	bytea => [ "'\\x00ff41'", '\\x00ff41' ],
	float8 => [ '0.1::float8 + 0.2::float8', '0.30000000000000004' ],
	float4 => [ '1.1::float4', '1.1' ],
	money => [ '1234.5::numeric', '$1,234.50' ],
	regclass => [ "'seen.odd'::regclass", 'seen.odd' ],
	tstzrange => [ "'[2026-01-02 03:04+00,)'", '["2026-01-02 03:04:00+00",)' ],
	'timestamptz[]' => [ "'{2026-02-01 00:00+00}'", '{"2026-02-01 00:00:00+00"}' ],
	'seen.pair' => [ "ROW('2026-02-01 00:00+00', '1 day')", '("2026-02-01 00:00:00+00","1 day")' ],
	text => [ "'k'", 'k' ]);
my %session = (
	default => '',
	german => "SET datestyle = 'German, DMY'; SET timezone = 'Asia/Kolkata'; SET intervalstyle = 'sql_standard'; SET bytea_output = 'escape'",
	american => "SET datestyle = 'SQL, MDY'; SET timezone = 'America/New_York'; SET intervalstyle = 'iso_8601'; SET extra_float_digits = 0",
	old => "SET datestyle = 'Postgres, DMY'; SET timezone = 'Europe/Paris'; SET intervalstyle = 'postgres_verbose'; SET extra_float_digits = -15",
	quoting => "SET quote_all_identifiers = on; SET search_path = seen, public");
my ($money) = grep { /^(?:de_DE|fr_FR|en_US)\.?utf-?8/i } split /\n/, `locale -a`;
$session{money} = "SET lc_monetary = '$money'" if $money;

ask('CREATE SCHEMA seen; CREATE TABLE seen.odd (id int); CREATE TYPE seen.pair AS (at timestamptz, took interval)');
my $n = 0;
foreach my $type (sort keys %value)
{
	my ($sql, $key) = @{ $value{$type} };
	my $table = 'seen.t' . $n++;

	ask(<<"SQL");
CREATE TABLE $table (k $type, n int);
INSERT INTO $table VALUES ($sql, 0);
CREATE TRIGGER emit AFTER UPDATE ON $table FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('t.n$n', 'k', 'k');
SQL
	# Out of and into the value: that is what is emitted
	foreach my $name (sort keys %session)
	{
		ask("$session{$name}; BEGIN; UPDATE $table SET k = NULL; UPDATE $table SET k = $sql; COMMIT");
	}
	my $all = ask("SELECT DISTINCT key FROM outbox.events WHERE topic = 't.n$n' AND key IS NOT NULL");
	is($all, $key, "$type: one key, whatever the session says");
	is( ask("SELECT count(DISTINCT (payload ->> 'op', payload -> 'new', payload ->> 'table'))"
			  . " FROM outbox.events WHERE topic = 't.n$n' AND payload -> 'new' ->> 'k' IS NOT NULL"),
		1, "$type: one payload");
}
is(ask("SELECT DISTINCT payload ->> 'table' FROM outbox.events WHERE topic = 't.n1'"), 'seen.t0', 'one table');

# The session's settings are its own again
my @shown = split /\n/, ask(<<'SQL');
SET datestyle = 'German, DMY'; SET timezone = 'Asia/Kolkata'; SET search_path = seen;
UPDATE t0 SET k = NULL WHERE k IS NOT NULL;
SHOW datestyle; SHOW timezone; SHOW search_path;
SQL
is("@shown", 'German, DMY Asia/Kolkata seen', 'the session keeps its settings');
my (undef, $out, $err) = $node->psql('postgres', <<'SQL', on_error_stop => 0);
CREATE TYPE seen.bad AS ENUM ('a');
CREATE FUNCTION seen.bad(seen.bad) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
CREATE CAST (seen.bad AS json) WITH FUNCTION seen.bad(seen.bad);
CREATE TABLE seen.fails (k int, b seen.bad);
CREATE TRIGGER emit AFTER INSERT ON seen.fails FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('t', 'k');
SET timezone = 'Asia/Kolkata';
INSERT INTO seen.fails VALUES (1, 'a');
SHOW timezone;
SQL
like($err, qr/ERROR:  no/, 'a cast that fails');
is($out, 'Asia/Kolkata', 'leaves them alone, too');

# replay() with abbreviations that mean something else when they are read
endpoint($node, $receiver, 'all', '/ok/a', "topics => '{order.*}'");
my $id = emit($node, 'order.created', '{}');
$receiver->wait_delivered(1, id => $id);
wait_settled($node);
ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.ticks"), 'there is a tick');
foreach my $settings ("SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Kolkata'",
	"SET datestyle = 'Postgres, MDY'; SET timezone = 'America/Manaus'",
	"SET datestyle = 'German'; SET timezone = 'Asia/Shanghai'")
{
	my (undef, $n, $error) = $node->psql('postgres',
		"$settings; SELECT outbox.replay('all', clock_timestamp() - interval '10 min')", on_error_stop => 0);
	is($n, 1, "one event is replayed: $settings") or diag($error);
	ok(wait_sql($node, 'SELECT bool_and(finished_at IS NOT NULL) AND sum(events) = count(*) FROM outbox.replays'),
		'and found');
	wait_settled($node);
}

$node->stop;
done_testing();
