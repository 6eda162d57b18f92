# The traces that calls of a customer leave in memory and on disk, and their work, are bounded.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub ask
{
	my ($sql, $role) = @_;
	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', $role // 'postgres' ]);
}

# Calls again and again, each by itself ('alone') or in one transaction, and says what came of it.
sub calls
{
	my ($how, $times, $call) = @_;
	my $sql = <<"SQL";
DO \$do\$
DECLARE
    good int := 0;
    states text[] := '{}';
BEGIN
    FOR i IN 1..$times LOOP
        BEGIN
            PERFORM outbox.$call;
            good := good + 1;
            @{[ $how eq 'alone' ? 'COMMIT;' : '' ]}
        EXCEPTION WHEN program_limit_exceeded OR configuration_limit_exceeded THEN
            states := states || SQLSTATE::text;
        END;
    END LOOP;
    RAISE WARNING 'good % states %', good, (SELECT array_agg(DISTINCT s ORDER BY s) FROM unnest(states) s);
END \$do\$
SQL

	# a block with an exception handler cannot commit
	$sql = "SELECT outbox.$call \\; COMMIT;\n" x $times if $how eq 'alone';
	my (undef, $out, $err) = $node->psql('postgres', ($how eq 'alone' ? "\\set VERBOSITY verbose\n" : '') . $sql,
		on_error_stop => 0, extra_params => [ '-U', 'portal' ]);
	return $how eq 'alone'
	  ? (scalar(() = $out =~ /\n/g) + 1, join ',', sort keys %{ { map { $_ => 1 } $err =~ /ERROR:\s+(\w{5}):/g } })
	  : $err =~ /good (\d+) states \{?([\w,]*)/;
}

sub size_of { return ask('SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c'
		  . " WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'") }

ask("CREATE ROLE portal LOGIN; SELECT outbox.grant_to('portal', 'portal')");
my $url = $receiver->url('/ok/acme');
endpoint($node, $receiver, 'other', '/ok/other', "tenant => 'globex'");
ask("SELECT outbox.emit('old', '{}', tenant => 'acme') FROM generate_series(1, 200)");
ask("SELECT outbox.portal_create_endpoint('acme', '$url', name => 'acme')", 'portal');
my $event = ask("SELECT outbox.emit('a', '{}', tenant => 'acme')");
$receiver->wait_delivered(1, id => $event);
ok(wait_settled($node), 'settled');
ask("SELECT outbox.portal_pause_endpoint('acme', 'acme')", 'portal');

my $many = "(SELECT array_agg('p' || g || '.*') || '{*}' FROM generate_series(1, 900) g)";
my $worker = worker_pid($node);
my $memory = private_memory($worker);
my $before = size_of();

# --- Without a limit on the number of calls: each of them is bounded by itself

ask('SELECT outbox.set_portal_limits(max_calls => 1000000)');

my ($good, $states) = calls('together', 1000, "portal_send_test('acme', 'acme', payload => jsonb_build_object('x', repeat(md5(i::text), 250)))");
is("$good $states", '10 54000', 'ten tests wait for a paused endpoint, and no more');
is(ask("SELECT count(*) FROM outbox.kept_events"), 10, 'with their events');

($good, $states) = calls('together', 300, "portal_replay('acme', 'acme', now() - interval '1 h', topics => $many)");
is("$good $states", '100 54000', 'a hundred replays wait');

($good, $states) = calls('together', 2000, "portal_retry('acme', 'acme', '$event')");
is($good, 2000, 'one event is sent again');
cmp_ok(ask("SELECT count(*) FROM outbox.commands WHERE action = 'resend'"), '<=', 1, 'by one command');
($good) = calls('together', 1000, "portal_pause_endpoint('acme', 'acme'), outbox.portal_resume_endpoint('acme', 'acme')");
is($good, 1000, 'resumed again and again');
ask("SELECT outbox.portal_pause_endpoint('acme', 'acme')", 'portal');
cmp_ok(ask("SELECT count(*) FROM outbox.commands WHERE action = 'probe'"), '<=', 1, 'is one probe');

like(join(' ', calls('together', 1, "portal_alter_endpoint('acme', 'acme', jsonb_build_object('topics', to_jsonb((SELECT array_agg(repeat('x', 100) || g) FROM generate_series(1, 100) g))))")),
	qr/^0 54000/, 'patterns have a length');
my $stored = sub { return ask("SELECT count(*) FROM outbox.subscriptions JOIN outbox.endpoint_settings USING (endpoint_id) WHERE name = 'acme'") };
my ($changed, $err) = (0, '');
foreach my $i (1 .. 150)
{
	(undef, undef, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT outbox.portal_alter_endpoint('acme', 'acme', '{\"topics\": [\"*\", \"t.$i\"]}')", extra_params => [ '-U', 'portal' ]);
	last if $err;
	$changed++;
	# the worker stores it
	wait_sql($node, "SELECT max(v.version) = max(s.version) FROM outbox.subscriptions v JOIN outbox.endpoint_settings s USING (endpoint_id)"
		  . " WHERE name = 'acme'") or last;
}
like($err, qr/54000: topics and filter of endpoint "acme" have changed 100 times/, 'what it was subscribed to is stored a hundred times at most');
cmp_ok($stored->(), '<=', 101, 'in as many rows');
my $rows = $stored->();
foreach my $i (1 .. 5)
{
	ask("SELECT outbox.portal_alter_endpoint('acme', 'acme', '{\"url\": \"$url?$i\"}')", 'portal');
	ok(wait_sql($node, "SELECT max(v.version) = max(s.version) FROM outbox.subscriptions v JOIN outbox.endpoint_settings s USING (endpoint_id)"
			  . " WHERE name = 'acme'"), 'another URL is stored');
}
is($stored->(), $rows, 'and leaves no row');

# --- Meanwhile another tenant's events arrive, and the worker has nothing of it in memory

my $new = ask("SELECT outbox.emit('b', '{}', tenant => 'globex')");
$receiver->wait_delivered(1, id => $new);
is(worker_pid($node), $worker, 'the same worker');
cmp_ok(private_memory($worker) - $memory, '<', 8 * 1024, 'whose memory has not grown (kB)');
cmp_ok(size_of() - $before, '<', 24 * 1024 * 1024, 'nor have the tables by much');

# --- Dead tests are few as well

endpoint($node, $receiver, 'dead', '/status/400', "tenant => 'hooli', max_attempts => 1");
my $tests = 'SELECT count(*) FROM outbox.parked k JOIN outbox.kept_events e USING (seq) WHERE e.test_of = k.endpoint_id'
  . " AND k.endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'dead') AND k.status";
foreach my $i (1 .. 15)
{
	ask("SELECT outbox.portal_send_test('hooli', 'dead')", 'portal');
	wait_sql($node, "$tests <> 'dead'" =~ s/count\(\*\)/count(*) FILTER (WHERE k.status IN ('retrying', 'blocked')) = 0/r) or last;
}
ok(wait_sql($node, "SELECT count(*) = 0 FROM outbox.commands c JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'dead'"),
	'commands are carried out');
is(ask("$tests = 'dead'"), 10, 'ten dead tests are kept');

# --- And what is delivered is kept for days, so it is small

endpoint($node, $receiver, 'many', '/ok/many', "tenant => 'pied'");
my $kept = ask("SELECT pg_total_relation_size('outbox.kept_events')");
my $refused = 0;
foreach my $i (1 .. 100)
{
	# MD5 sums, which are not compressed by much
	(undef, undef, my $said) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.portal_send_test('pied', 'many', payload => to_jsonb("
		  . "(SELECT string_agg(md5(concat($i, ' ', n)), '') FROM generate_series(1, 3000) n)))", extra_params => [ '-U', 'portal' ]);
	$refused++ if $said =~ /ERROR:  54000: the payload has 96002 bytes.*^HINT:  Use at most 8192 bytes.*^COLUMN NAME:  payload$/ms;
	wait_sql($node, "SELECT count(*) = 0 FROM outbox.parked JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'many'") or last;
}
cmp_ok(ask("SELECT pg_total_relation_size('outbox.kept_events')") - $kept, '<', 1024 * 1024, 'a hundred large tests leave little');
is($refused, 100, 'because none is sent');
my $longest = ask("SELECT outbox.portal_send_test('pied', 'many', payload => to_jsonb(repeat('x', 8190))) ->> 'event_id'", 'portal');
$receiver->wait_delivered(1, id => $longest);
pass('one of 8,192 bytes is');

# --- A call that is refused takes no number of the log

my $number = ask('SELECT last_value FROM outbox.events_seq');
foreach my $case ([ 22023, q('bad topic') ], [ 22004, 'NULL' ], [ 54000, q('deep', (repeat('[', 600) || repeat(']', 600))::jsonb) ])
{
	my (undef, undef, $said) = $node->psql('postgres', "\\set VERBOSITY verbose\n" . "SELECT outbox.portal_send_test('pied', 'many', $case->[1]);\n" x 50,
		on_error_stop => 0, extra_params => [ '-U', 'portal' ]);
	is(scalar(() = $said =~ /ERROR:  $case->[0]/g), 50, "$case->[1]: refused");
}
is(ask('SELECT last_value FROM outbox.events_seq'), $number, 'and no number is used');

# --- The number of calls is bounded for a tenant, all of its endpoints together

ask('SELECT outbox.set_portal_limits(reset => true)');
is(ask("SELECT outbox.portal_limits('new') -> 'max_calls'"), 600, 'so many by default');
ask("SELECT outbox.set_portal_limits('acme', max_calls => 100)");
ask("UPDATE outbox.portal_limits_here SET spent = 0 WHERE tenant = 'acme'");
ask("SELECT outbox.portal_create_endpoint('acme', '$url', name => 'second')", 'portal');
($good, $states) = calls('together', 200, "portal_pause_endpoint('acme', CASE i % 2 WHEN 0 THEN 'acme' ELSE 'second' END)");
like("$good $states", qr/^(99|10[0-5]) 53400$/, 'in one transaction');
my %call = (
	portal_create_endpoint => "'acme', '$url'",
	portal_alter_endpoint => q['acme', 'acme', '{"rate_limit": 5}'],
	portal_resume_endpoint => q['acme', 'acme'],
	portal_pause_endpoint => q['acme', 'acme'],
	portal_rotate_secret => q['acme', 'acme'],
	portal_send_test => q['acme', 'acme'],
	portal_replay => q['acme', 'acme', now() - interval '1 h'],
	portal_retry => "'acme', 'acme', '$event'",
	portal_cancel_replay => "'acme', 'acme', 1",
	portal_drop_endpoint => q['acme', 'second', true]);
ask("UPDATE outbox.portal_limits_here SET spent = 100, counted_at = clock_timestamp() + interval '1 h' WHERE tenant = 'acme'");
foreach my $function (sort keys %call)
{
	(undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT outbox.$function($call{$function})",
		extra_params => [ '-U', 'portal' ]);
	like($err, qr/ERROR:  53400: tenant "acme" may change something 100 times in an hour.*HINT:  Try again in 36 s\.$/ms, "$function: is counted");
}
is( ask("SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace"
		  . " AND p.provolatile = 'v' AND has_function_privilege('portal', p.oid, 'EXECUTE') AND p.proname ~ '^portal_'"),
	join(' ', sort keys %call),
	'these are all that can change something');
is(ask("SELECT count(*) FROM outbox.portal_endpoints('acme') e WHERE outbox.portal_secret('acme', e ->> 'name') IS NOT NULL", 'portal'),
	2, 'what only reads is not counted');
ask("UPDATE outbox.portal_limits_here SET counted_at = clock_timestamp() - interval '2 min' WHERE tenant = 'acme'");
ask("SELECT outbox.portal_pause_endpoint('acme', 'acme')", 'portal');
pass('and after some time it may call again');
ask("SELECT outbox.portal_create_endpoint('initech', '$url')", 'portal');
pass('another tenant may all the time');
($good, $states) = calls('alone', 150, "portal_pause_endpoint('initech', (SELECT e ->> 'name' FROM outbox.portal_endpoints('initech') e))");
is("$good $states", '150 ', 'one by one as well, up to its limit');

# A number of a few bytes can have a text of 131,001 characters.  None is printed, not even to refuse it.

ask("SELECT outbox.portal_create_endpoint('initech', '$url', name => 'e')", 'portal');
foreach my $number ('1e131000', '-1e131000', '1e-16383', '0e-16383')
{
	foreach my $call (map({ "portal_alter_endpoint('initech', 'e', jsonb_build_object('$_', n.n))" } qw(metadata headers label rate_limit topics filter url)),
		q[portal_create_endpoint('initech', 'https://example.com', jsonb_build_object('metadata', jsonb_build_object('a', n.n)))],
		q[portal_send_test('initech', 'e', 'a', n.n)])
	{
		(undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n"
			  . "SELECT outbox.$call FROM (SELECT jsonb_agg('$number'::jsonb) FROM generate_series(1, 20)) n (n)", extra_params => [ '-U', 'portal' ]);
		like($err, qr/ERROR:  22023: a number in (settings|payload) has too many digits.*HINT/s, "$number: " . substr($call, 0, 90));
	}
}
is( ask(q[SELECT outbox.portal_alter_endpoint('initech', 'e', '{"metadata": {"a": [12345678901234567890, -0.5, 0, 1e20]}}') -> 'metadata'], 'portal'),
	'{"a": [12345678901234567890, -0.5, 0, 100000000000000000000]}', 'numbers of some digits are taken');

# --- A page compares few events where an endpoint has had many patterns

ask(q[SELECT outbox.portal_create_endpoint('initech', 'https://example.com', '{"topics": ["never.*"]}', name => 'patterns')], 'portal');
ask("SELECT count(outbox.emit('nowhere', '{}', tenant => 'initech')) FROM generate_series(1, 300)");
ask("INSERT INTO outbox.subscriptions (endpoint_id, version, topics, read, last_seq)"
	  . " SELECT endpoint_id, -n, ARRAY(SELECT concat('p', n, '.', g) FROM generate_series(1, 900) g), pg_current_snapshot(), 0"
	  . " FROM outbox.endpoint_settings, generate_series(1, 100) n WHERE name = 'patterns'");
my ($compared) = ask("BEGIN; SET LOCAL track_functions = 'all'; SELECT outbox.portal_deliveries('initech', 'patterns') IS NOT NULL;"
	  . " SELECT calls FROM pg_stat_xact_user_functions WHERE schemaname = 'outbox' AND funcname = 'topic_in'; COMMIT") =~ /(\d+)$/;
cmp_ok($compared * 90_000, '<=', 20_000_000, 'a page compares topics with patterns so many times at most');
my $page = "outbox.page_rows(NULL, array_fill((SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'e'), '{2000}'), NULL, %s, 20, array_fill('no.x'::text, '{1100}'), NULL, NULL)";
is(ask(sprintf "SELECT split_part(next.stopped, ':', 1)::int8 < split_part(first.stopped, ':', 1)::int8 FROM $page first, $page next", 'NULL', 'first.stopped'), 't', 'and the next page goes on');

# --- A page of changes ends behind many bytes, and the next one goes on

ask("INSERT INTO outbox.endpoint_audit (tenant, endpoint, role, action, before, after) SELECT 'initech', 'e', 'portal', 'alter', c.v, c.v"
	  . " FROM (SELECT jsonb_build_object('topics', (SELECT jsonb_agg('t' || g) FROM generate_series(1, 1000) g),"
	  . " 'metadata', (SELECT jsonb_agg(0) FROM generate_series(1, 1365))) AS v OFFSET 0) c, generate_series(1, 1000)");
my $peak = q{SELECT (regexp_match(pg_read_file('/proc/self/status'), 'VmHWM:\s+(\d+)'))[1]};
my ($first, $then) = split /\n/, ask("$peak; SELECT outbox.portal_changes('initech', page_size => 1000) \\g /dev/null\n$peak");
cmp_ok($then - $first, '<', 64 * 1024, 'a page of large changes takes little memory (kB)') unless $ENV{OUTBOX_MEMORY_CHECKER};
is( ask("WITH RECURSIVE p (page) AS (SELECT outbox.portal_changes('initech', page_size => 1000) UNION ALL"
		  . " SELECT outbox.portal_changes('initech', before => page ->> 'cursor', page_size => 1000) FROM p WHERE page ->> 'cursor' IS NOT NULL)"
		  . " SELECT sum(jsonb_array_length(page -> 'changes')) FROM p"),
	ask("SELECT count(*) FROM outbox.endpoint_audit WHERE tenant = 'initech' AND endpoint <> ''"), 'and all of them have each change');

$node->stop;
done_testing();
