# A customer's filter costs a few milliseconds for an event at most, or is refused.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $seed = $ENV{SEED} // int(rand(2**31));
note "SEED=$seed";
srand($seed);

sub choose { return $_[ int rand @_ ] }

# --- What PostgreSQL evaluates in more time than that

my $url = $receiver->url('/ok/f');
ask("SELECT outbox.portal_create_endpoint('acme', '$url', name => 'f')");
foreach my $filter (
	join(' || ', map { "\$.a like_regex \"x$_\"" } 1 .. 20),    # ten such endpoints: each is compiled again for each event
	'$.a like_regex "x"',
	'$.a * $.a == 1',
	'$.a / 3 == 1',
	'1e131000 + $.a == 1',
	'exists($[*] ? (@ + 1 == 2))',
	'$.a.double() == 1',
	'$.a' . '.size()' x 150 . ' == 1',
	'$.a.datetime() < "2030-01-01".datetime()',
	'$' . '[0, 0]' x 30 . ' == 1',
	'$.**.a == 1',
	'exists($.a[*] ? (exists($.b[*] ? (@ == 1))))',
	'$.a[*] == $.b[*]',
	# one of them makes a text longer
	$node->pg_version < 19 ? () : map { "\$.a.$_ == \"x\"" } qw|replace("a","aaa") lower() upper() initcap() ltrim() rtrim("x") btrim() split_part(",",2)|)
{
	my (undef, undef, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT outbox.portal_alter_endpoint('acme', 'f', jsonb_build_object('filter', \$f\$$filter\$f\$))");
	like($err, qr/22023: invalid filter .*HINT/s, "refused: " . substr($filter, 0, 40));
}

# --- A regular expression is not even compiled, which takes seconds, and would not be counted

foreach my $filter ('$.a like_regex "("', '$.a LIKE_REGEX "("', '$.a like\\_regex "("', '$.a like\\u005fregex "("', '/* " */ $.a like_regex "("', '$.a == "\\"" || $.a like_regex "("', '$.a like/**/_regex "("')
{
	my ($rc, $out, $err) = $node->psql('postgres',
		"SELECT outbox.portal_alter_endpoint('acme', 'f', jsonb_build_object('filter', \$f\$$filter\$f\$))");
	like($err, qr/invalid filter .*it has a regular expression/, "refused unread: $filter");
}
foreach my $filter ('$.a == "like_regex"', '$.a == "a/b" || $.b starts with "text/*"', '$.a == "\\"\\\\"')
{
	ask("SELECT outbox.portal_alter_endpoint('acme', 'f', jsonb_build_object('filter', \$f\$$filter\$f\$))");
	ok(1, "accepted: $filter");
}
{
	my ($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT outbox.portal_alter_endpoint('acme', 'f', jsonb_build_object('filter', repeat('\$.a == 1 || ', 2000000) || '\$.a == 1'))");
	like($err, qr/54000: the settings take \d+ bytes/, 'a text of 24 MB is not read');
	($rc, $out, $err) = $node->psql('postgres',
		"SELECT outbox.portal_alter_endpoint('acme', 'f', jsonb_build_object('filter', '\$.a == 1' || repeat(' || \$.a == 1e131000', 25)))");
	like($err, qr/it has a number of more than 40 characters/, 'numbers with very many digits');
	cmp_ok(length($err), '<', 10000, 'are not printed');
	($rc, $out, $err) = $node->psql('postgres',
		"SELECT outbox.portal_alter_endpoint('acme', 'f', jsonb_build_object('filter', '\$.a == 1' || repeat(' || \$.a == 1e131000', 1500)))");
	like($err, qr/filter takes \d+ bytes/, 'however many there are');
}

# --- Whatever is accepted ends in time and without an error, over the worst payloads that it is judged over.
# A second is thirty times what the slowest takes; what is not linear takes minutes.

sub part
{
	my ($root, $depth) = @_;
	my $path = $root;
	for (1 .. int rand 4)
	{
		$path .= choose('.a', '.*', '[*]', '[0]', '[last]', '[0 to 9999999]', '[0, 0]', '.size()', '.type()', '.**', '.abs()', '.double()',
			'.datetime()', '.keyvalue()', $depth > 0 ? ' ? (' . predicate('@', $depth - 1) . ')' : '');
	}
	return $path;
}

sub value
{
	my ($root, $depth) = @_;
	my $kind = int rand 8;
	return choose('1', '0', '-1', '1e38', '1e131000', '"x"', 'null', 'true', '7777777777777777777777777777777777') if $kind < 3;
	return '(' . value($root, $depth - 1) . choose(' + ', ' - ', ' * ', ' % ', ' / ') . value($root, $depth - 1) . ')' if $kind < 4 && $depth > 0;
	return part(choose($root, $root, $root, '$'), $depth);
}

sub predicate
{
	my ($root, $depth) = @_;
	my $kind = int rand 10;
	return '(' . predicate($root, $depth - 1) . choose(' && ', ' || ') . predicate($root, $depth - 1) . ')' if $kind < 2 && $depth > 0;
	return '!(' . predicate($root, $depth - 1) . ')' if $kind < 3 && $depth > 0;
	return '((' . predicate($root, $depth - 1) . ') is unknown)' if $kind < 4 && $depth > 0;
	return 'exists(' . part($root, $depth) . ')' if $kind < 5;
	return part($root, $depth) . choose(' starts with "x"', ' like_regex "^(a|b)*c"') if $kind < 6;
	return value($root, $depth) . choose(' == ', ' != ', ' < ', ' >= ') . value($root, $depth);
}

my @filters = map { choose('', '', 'strict ') . predicate('$', 3) } 1 .. 4000;
ask('CREATE TABLE tried (filter text)');
ask("INSERT INTO tried VALUES " . join ', ', map { "(\$f\$$_\$f\$)" } @filters);
my $result = ask(<<'SQL');
CREATE TABLE hostile AS
SELECT jsonb_build_object('a', jsonb_agg(a)) FROM generate_series(1, 20000) CROSS JOIN (VALUES ('0'::jsonb)) v (a)
UNION ALL SELECT jsonb_agg('""'::jsonb) FROM generate_series(1, 5000)
UNION ALL SELECT jsonb_agg('1e131000'::jsonb) FROM generate_series(1, 1000)
UNION ALL SELECT jsonb_build_object('a', repeat('7', 130000)::numeric)
UNION ALL SELECT jsonb_agg('{"a": {"a": [1, "x"]}}'::jsonb) FROM generate_series(1, 1000)
UNION ALL SELECT (repeat('[', 500) || repeat(']', 500))::jsonb;
CREATE FUNCTION try() RETURNS text LANGUAGE plpgsql SET statement_timeout = 0 AS $$
DECLARE
    f text;
    accepted int := 0;
    begun timestamptz;
BEGIN
    FOR f IN SELECT filter FROM tried LOOP
        BEGIN
            PERFORM outbox.check_options(filter => f::jsonpath);
        EXCEPTION WHEN invalid_parameter_value OR syntax_error THEN
            CONTINUE;
        END;
        accepted := accepted + 1;
        begun := clock_timestamp();
        BEGIN
            PERFORM outbox.filter_matches(h.jsonb_build_object, f::jsonpath) FROM hostile h;
        EXCEPTION WHEN OTHERS THEN
            RETURN format('%s: %s', f, SQLERRM);
        END;
        IF clock_timestamp() - begun > interval '6 s' THEN
            RETURN f || ' took long';
        END IF;
    END LOOP;
    RETURN 'tried ' || CASE WHEN accepted BETWEEN 200 AND 3800 THEN 'many' ELSE accepted::text END;
END $$;
SELECT try();
SQL
is($result, 'tried many', 'at random: what is accepted ends in time, and throws nothing');

# --- What it may read is bounded: its length times the elements of arrays, and times the payload's size

sub judges
{
	my ($filter, $payload) = @_;
	return ask("SELECT coalesce(outbox.filter_matches(($payload), \$f\$$filter\$f\$)::text, 'too long')");
}

sub elements { my ($n, $element) = @_; return "SELECT jsonb_build_object('a', jsonb_agg('$element'::jsonb)) FROM generate_series(1, $n)" }
my $most = 'exists($.a[*] ? (' . join(' || ', map { "@ == $_" } 1 .. 28) . '))';
my $fits = int(2097152 / ask("SELECT pg_column_size('$most'::jsonpath)"));
is(judges($most, elements($fits, 'null')), 'false', "a long filter: $fits elements");
is(judges($most, elements($fits + 1, 'null')), 'too long', 'and no more');
is(judges($most, elements(int($fits / 3) + 1, '[1, {"b": [2]}]')), 'too long', 'also of arrays in arrays');
is(judges('$.a == 1', elements(30000, '2')), 'false', 'a short one: 30,000');
is(judges('$.a == 1', elements(200000, 'null')), 'too long', 'and not 200,000');
my $members = "SELECT jsonb_object_agg(n, 1) FROM generate_series(1, %d) n";
is(judges('$.* == 2', sprintf($members, 10000)), 'false', 'members of objects where it reads them all: 10,000');
is(judges('$.* == 2', sprintf($members, 60000)), 'too long', 'and not 60,000');
is(judges('$.a == 2 || $.b == 2 || $.c == 2', sprintf($members, 50000)), 'false', 'members cost nothing where it names them');
is(judges('$.a == "b" && $.b == 2', "SELECT jsonb_build_object('a', repeat('x', 900000))"), 'false', 'a long text costs little');

# --- A filter that is too long for a payload is not judged, by the worker and by views alike

my $long = join ' || ', map { "\$.n == $_" } 1 .. 30;
my $large = "jsonb_build_object('n', %d, 'x', repeat('x', 300000))";
endpoint($node, $receiver, 'long', '/ok/long', "tenant => 'acme', topics => '{long.*}', filter => '$long'");
endpoint($node, $receiver, 'other', '/ok/other', "tenant => 'acme', topics => '{long.*}'");
is(ask('SELECT outbox.filter_matches(' . sprintf($large, 1) . ", '$long')"), '', 'neither true nor false');
my $small = ask("SELECT outbox.emit('long.a', '{\"n\": 1}', tenant => 'acme')");
$receiver->wait_delivered(1, id => $small, path => '/ok/long');
ask("SELECT outbox.emit('long.b', " . sprintf($large, 1) . ", tenant => 'acme') FROM generate_series(1, 19)");
ok(wait_sql($node, "SELECT count(*) = 19 FROM outbox.dead_letters WHERE endpoint = 'long'"), 'the deliveries are dead');
is( ask("SELECT DISTINCT reason || ': ' || last_error FROM outbox.dead_letters WHERE endpoint = 'long'"),
	'filter failed: the filter is too long for a payload of this size',
	'and say why');
$small = ask("SELECT outbox.emit('long.c', '{\"n\": 2}', tenant => 'acme')");
$receiver->wait_delivered(1, id => $small, path => '/ok/long');

# --- An endpoint for which that happens again and again stops, and keeps its events

ask("SELECT outbox.emit('long.d', " . sprintf($large, 1) . ", tenant => 'acme') FROM generate_series(1, 50)");
ok(wait_sql($node, "SELECT state = 'disabled' AND reason = 'its filter is too long for its payloads' FROM outbox.stats WHERE endpoint = 'long'"),
	'it is disabled, and says why');
ok(wait_sql($node, "SELECT dead = 39 AND pending = 30 AND pending_exact FROM outbox.stats WHERE endpoint = 'long'"), 'the next events wait');
$receiver->wait_delivered(71, path => '/ok/other');
ask("SELECT outbox.portal_alter_endpoint('acme', 'long', '{\"filter\": \"\$.n == 1\"}'); SELECT outbox.portal_resume_endpoint('acme', 'long')");
ok(wait_sql($node, "SELECT state = 'active' AND delivered = 32 FROM outbox.stats WHERE endpoint = 'long'"), 'and are sent with a shorter filter');

# --- A call of the portal evaluates a filter at most a thousand times

ask("SELECT outbox.portal_create_endpoint('calls', '$url', '{\"topics\": [\"calls.*\"], \"filter\": \"\$.n == 0\"}', 'calls')");
ask("SELECT outbox.emit('calls.a', jsonb_build_object('n', n), tenant => 'calls') FROM generate_series(1, 10) n");
my $replay = "SELECT outbox.portal_replay('calls', 'calls', now() - interval '1 hour') ->> ";
ok(wait_sql($node, "SELECT pending = 0 AND pending_exact FROM outbox.stats WHERE endpoint = 'calls'"), 'ten events are judged');
is(ask("$replay 'expected'"), 0, 'a replay of few is counted');
my $worker = worker_pid($node);
kill 'STOP', $worker;    # what it has not read is not judged yet
ask("SELECT outbox.emit('calls.a', jsonb_build_object('n', n), tenant => 'calls') FROM generate_series(1, 900) n");
ask('BEGIN; SELECT outbox.portal_drop_endpoint(\'calls\', \'calls\'); ROLLBACK');
ok(1, 'an endpoint that 900 refused events wait for can be dropped');
ask("SELECT outbox.emit('calls.a', jsonb_build_object('n', n), tenant => 'calls') FROM generate_series(1, 200) n");
my ($rc, $out, $err) = $node->psql('postgres', "SELECT outbox.portal_drop_endpoint('calls', 'calls')");
like($err, qr/still has undelivered events/, 'and of 1,100 not, unless they are given up');
is(ask("SELECT (r ->> 'replay_id')::int8 > 0, r -> 'expected' FROM outbox.portal_replay('calls', 'calls', now() - interval '1 hour') r"), 't|null', 'a replay of many is made, and not counted');
is(ask("SELECT outbox.replay('calls', now() - interval '1 hour')"), 0, 'the operator counts all');
ask("SELECT outbox.portal_drop_endpoint('calls', 'calls', discard => true)");
kill 'CONT', $worker;

# --- The time that filters take is shared by tenant
# Each evaluation is an event that is sent, so requests are counted.

my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{load.*}', tenant => 'fine'");
endpoint($node, $receiver, 'plain', '/ok/plain', "topics => '{load.*}'");
my $producer = start_producer($node, $log, rate => 20);
$receiver->wait_delivered(20, path => '/ok/plain');

sub requests { my ($path) = @_; return scalar(() = $receiver->delivered(path => $path)) }

sub plain_goes_on
{
	$receiver->wait_delivered(50 + requests('/ok/plain'), path => '/ok/plain');
	return 1;
}

# True of each event with this n, after all items have been compared as often as the length allows.
sub costly { my ($n) = @_; return 'exists($.a[*] ? (' . join(' || ', map { "@ == $_" } 1 .. $n) . ')) || $.n >= 0' }

sub emit_costly
{
	my ($topic, $tenant, $events, $items, $then) = @_;
	return ask("WITH a AS MATERIALIZED (SELECT jsonb_agg('null'::jsonb) AS a FROM generate_series(1, $items))"
		  . " SELECT count(outbox.emit('$topic', jsonb_build_object('a', a, 'n', n), key => 'k', tenant => $tenant)) FROM a, generate_series(1, $events) n; " . ($then // ''));
}

my $filter = costly(27);
endpoint($node, $receiver, "costly$_", "/ok/costly$_", "topics => '{costly.*}', tenant => 'costly', filter => '$filter'") foreach 1 .. 10;
endpoint($node, $receiver, "each$_", "/ok/each$_", "topics => '{each.*}', filter => '$filter'") foreach 1 .. 10;
endpoint($node, $receiver, 'open', '/ok/open', "topics => '{costly.*}', tenant => 'costly'");
my $seconds_each = ask("CREATE TABLE costly AS SELECT jsonb_build_object('a', jsonb_agg('null'::jsonb), 'n', 1) AS p FROM generate_series(1, 1200);"
	  . " SELECT min(extract(epoch FROM clock_timestamp() - b)) FROM (SELECT CASE WHEN jsonb_path_match(p, '$filter') THEN b END AS b"
	  . " FROM (SELECT clock_timestamp() AS b, p FROM costly, generate_series(1, 20) n OFFSET 0) x OFFSET 0) y");
my $begun = time;
emit_costly('costly.a', "'costly'", 200, 1200);
emit_costly('each.a', "'t' || n", 200, 1200);
plain_goes_on();
my $evaluated = 0;
$evaluated += requests("/ok/costly$_") + requests("/ok/each$_") foreach 1 .. 10;
my $part = $evaluated * $seconds_each / (time - $begun);
note sprintf '%d evaluations of %.1f ms: %.0f %%', $evaluated, $seconds_each * 1000, $part * 100;
cmp_ok($part, '<', 0.6, 'they take a part of the time');
ok(wait_sql($node, "SELECT count(*) > 0 FROM outbox.stats WHERE endpoint LIKE 'costly%' AND reason LIKE '%filter%too much of the worker%'"), 'an endpoint says why it waits');
$receiver->wait_delivered(200, path => '/ok/open');
ok(1, 'an endpoint of the tenant without a filter does not wait');

# First evaluations of 50 tenants do not add up before an event of another

my $first = 'SELECT outbox.%s FROM generate_series(1, 50) n';
ask(sprintf $first, "create_endpoint('first' || n, '" . $receiver->url('/ok/first') . "', topics => '{first.*}', tenant => 'first' || n, filter => '$filter')");
my ($after) = emit_costly('first.a', "'first' || n", 50, 1200, "SELECT outbox.emit('load.first', '{}')") =~ /(\S+)\z/;
ok(wait_sql($node, "SELECT count(*) >= 51 FROM outbox.attempts WHERE endpoint LIKE 'first%' OR event_id = '$after'"), 'all are sent');
my $meanwhile = ask("SELECT count(*) FROM outbox.attempts f, outbox.attempts a JOIN outbox.events e ON e.id = a.event_id"
	  . " WHERE a.event_id = '$after' AND f.endpoint LIKE 'first%' AND f.started_at BETWEEN e.created_at AND a.started_at");
cmp_ok($meanwhile, '<', 25, 'an event that comes later is sent before most of them are evaluated');
ask(sprintf $first, "drop_endpoint('first' || n, discard => true)");

# Replays

endpoint($node, $receiver, "again$_", "/ok/again$_", "topics => '{again.*}', tenant => 'again'") foreach 1 .. 4;
emit_costly('again.a', "'again'", 100, 1200);
$receiver->wait_delivered(100, path => "/ok/again$_") foreach 1 .. 4;
ask(join ';', map { "SELECT outbox.alter_endpoint('again$_', filter => '$filter')" } 1 .. 4);
ask(join ';', map { "SELECT outbox.replay('again$_', now() - interval '1 hour')" } 1 .. 4);
$begun = time;
plain_goes_on();
$part = ask("SELECT sum(events) FROM outbox.replays") * $seconds_each / (time - $begun);
note sprintf '%.0f %%', $part * 100;
cmp_ok($part, '<', 0.6, 'also in replays');

ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints WHERE name ~ '^(costly|each|again|open)'");

# Also replays that find nothing, without a filter

ask("SELECT count(outbox.emit('nowhere', '{}', tenant => 'scans')) FROM generate_series(1, 200000)");
endpoint($node, $receiver, "scan$_", "/ok/scan$_", "topics => '{scan}', tenant => 'scans'") foreach 1 .. 4;
my $scans = "SELECT count(*) FROM %s JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name LIKE 'scan%%'";
ok(wait_sql($node, sprintf($scans, 'outbox.endpoint_positions'), 4), 'they have a place');
ask(join ';', map { "SELECT outbox.portal_replay('scans', 'scan$_', now() - interval '1 hour', topics => '{no.such}')" } (1 .. 4) x 3);
my $pid = worker_pid($node);
my $ticks = cpu_ticks($pid);
$begun = time;
plain_goes_on();
$part = (cpu_ticks($pid) - $ticks) / 100 / (time - $begun);
note sprintf '%.0f %%', $part * 100;
cmp_ok($part, '<', 0.6, 'the worker has time for others');
cmp_ok(ask(sprintf($scans, 'outbox.replays') . ' AND finished_at IS NULL'), '>', 0, 'while they go on');
ask("SELECT outbox.drop_endpoint('scan' || n, discard => true) FROM generate_series(1, 4) n");

# An endpoint that catches up at its share gets each event, in order, also of what commits late

$filter = costly(20);
endpoint($node, $receiver, "slow$_", "/ok/slow$_", "topics => '{slow.*}', tenant => 'slow', filter => '$filter'") foreach 1 .. 3;
my $late = $node->background_psql('postgres');
$late->query_safe("BEGIN; SELECT outbox.emit('slow.a', '{\"n\": 1000}', tenant => 'slow')");
emit_costly('slow.a', "'slow'", 5, 1500);
emit_costly('slow.a', "'slow'", 10, 1500);
$late->query_safe('COMMIT');
$late->quit;
emit_costly('slow.a', "'slow'", 5, 1500);
$receiver->wait_delivered(21, path => "/ok/slow$_") foreach 1 .. 3;
my $ordered = ask("SELECT string_agg(id::text, ' ' ORDER BY seq) FROM outbox.all_events WHERE topic = 'slow.a' AND key = 'k'");
foreach my $n (1 .. 3)
{
	is(join(' ', map { $_->{id} } grep { defined $_->{headers}{'outbox-key'} } $receiver->delivered(path => "/ok/slow$n")), $ordered, "slow$n: each once, in order");
}
ok(wait_sql($node, "SELECT bool_and(pending = 0 AND pending_exact) FROM outbox.stats WHERE endpoint LIKE 'slow%'"), 'and is known to lack nothing');
stop_producer($producer);
check_history($node, $receiver, $log, endpoints => ['/ok/plain'], max_dead => 39, name => 'the other endpoint: nothing lost, all in order');

$node->stop;
done_testing();
