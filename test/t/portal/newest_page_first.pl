# A page of deliveries has the newest first, each of them once, and costs no more in a long log.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.settle_interval = '1 ms'\nautovacuum = off\n");
my $receiver = OutboxTest::Receiver->new('main');

my $quick = "backoff_base => '1 ms', backoff_max => '2 ms', max_attempts => 2";
endpoint($node, $receiver, 'acme.a', '/ok/a', "topics => '{a.*,test.*}', tenant => 'acme'");
endpoint($node, $receiver, 'acme.b', '/dead/b', "topics => '{b.*,test.*}', tenant => 'acme', filter => '\$.n > 5', $quick");
endpoint($node, $receiver, 'globex.a', '/ok/globex', "topics => '{a.*}', tenant => 'globex'");
endpoint($node, $receiver, 'archive', '/ok/archive', "topics => '{*}'");
$receiver->control(path => '/dead/b', behave => '/status/500');
ask("SELECT count(outbox.emit((ARRAY['a.x', 'b.x'])[1 + n % 2], jsonb_build_object('n', n), tenant => (ARRAY['acme', 'globex', NULL])[1 + n % 3]))"
	  . ' FROM generate_series(1, 90) n');
ok(wait_sql($node, "SELECT dead >= 3 FROM outbox.stats WHERE endpoint = 'acme.b'"), 'some are dead');
$receiver->control(path => '/dead/b', behave => '/ok');
ask("SELECT outbox.resume_endpoint('acme.b')");
ok(wait_settled($node), 'done');
ask("SELECT outbox.alter_endpoint('acme.a', topics => '{b.*}')");
ask("SELECT outbox.send_test('acme.a')");
ok(wait_settled($node), 'a test event, too');
ok(wait_sql($node, "SELECT count(*) = 2 FROM outbox.subscriptions v JOIN outbox.endpoint_settings s USING (endpoint_id)"
	  . " WHERE s.name = 'acme.a'"), 'the other topics hold');
ask("SELECT outbox.emit('b.x', jsonb_build_object('n', n), tenant => 'acme') FROM generate_series(100, 105) n");
ok(wait_settled($node), 'done');
ask("SELECT outbox.pause_endpoint('acme.a')");
ask("SELECT outbox.emit('b.x', jsonb_build_object('n', n), tenant => 'acme') FROM generate_series(200, 212) n");
ok( wait_sql(
		$node,
		"SELECT NOT EXISTS (SELECT FROM outbox.deliveries WHERE endpoint <> 'acme.a' AND status NOT IN ('delivered', 'dead', 'cancelled', 'forgotten'))"),
	'done');
ok(wait_sql($node, "SELECT count(*) = 13 FROM outbox.deliveries WHERE endpoint = 'acme.a' AND status = 'pending'"), '13 wait');

# --- All pages together are the view

# Reads page after page, as a client does, until one has no row.
sub pages
{
	my ($function, $arguments, $columns, $size) = @_;
	my ($before, @all, $most) = ('NULL');

	$most = 0;
	for (my $n = 0; $n < 500; $n++)
	{
		my @rows = split /\n/, ask("SELECT cursor, $columns, event_id IS NULL FROM outbox.$function($arguments,"
			  . " before => $before, page_size => $size)");
		return ($most, @all) unless @rows;
		my $cursor;
		foreach (@rows)
		{
			($cursor, my $row) = /^(.*?)\|(.*)$/;
			push @all, $row =~ s/\|f$//r unless $row =~ /\|t$/;
		}
		$most = @rows if @rows > $most;
		$before = "'$cursor'";
	}
	die 'pages without an end';
}

my $delivery = 'event_id, seq, topic, type, key, tenant, endpoint, status, reason, attempts, next_attempt_at,'
  . ' last_status_code, last_error, created_at, delivered_at';
my $of_acme = "endpoint IN (SELECT name FROM outbox.endpoints WHERE tenant = 'acme')";
foreach my $case (
	[ "'acme.a'", "endpoint = 'acme.a'" ],
	[ "'acme.b'", "endpoint = 'acme.b'" ],
	[ "'acme.b', 'acme'", "endpoint = 'acme.b'" ],
	[ "'archive'", "endpoint = 'archive'" ],
	[ "tenant => 'acme'", $of_acme ],
	[ "tenant => 'acme', status => 'dead'", "$of_acme AND status = 'dead'" ],
	[ "tenant => 'acme', status => 'pending'", "$of_acme AND status = 'pending'" ],
	[ "tenant => 'acme', status => 'delivered'", "$of_acme AND status = 'delivered'" ],
	[ "'archive', status => 'retrying'", 'false' ],
	[ "tenant => 'Acme'", 'false' ])
{
	my ($arguments, $where) = @$case;
	my $view = ask("SELECT $delivery FROM outbox.deliveries WHERE $where ORDER BY seq DESC, endpoint");

	foreach my $size (7, 1000)
	{
		my ($most, @rows) = pages('deliveries_page', $arguments, $delivery, $size);
		is(join("\n", @rows), $view, "$arguments, $size a page");
		cmp_ok($most, '<=', $size, 'no page has more');
	}
	isnt($view, '', 'with something to show') if $where ne 'false';
}

# Between two times: that of a test event, which the log never had
my $tested = ask('SELECT created_at FROM outbox.deliveries WHERE test');
foreach my $of ([ "'acme.a'", "endpoint = 'acme.a'" ], [ "tenant => 'acme'", $of_acme ], [ "'archive'", "endpoint = 'archive'" ])
{
	foreach my $times (
		[ "to_time => '$tested'", "created_at <= '$tested'" ],
		[ "from_time => '$tested'", "created_at >= '$tested'" ],
		[ "from_time => '$tested', to_time => '$tested'", "created_at = '$tested'" ])
	{
		my (undef, @rows) = pages('deliveries_page', "$of->[0], $times->[0]", $delivery, 7);
		is(join("\n", @rows), ask("SELECT $delivery FROM outbox.deliveries WHERE $of->[1] AND $times->[1] ORDER BY seq DESC, endpoint"), "$of->[0], $times->[0]");
	}
}

my $attempt = 'event_id, seq, endpoint, tenant, attempt, started_at, duration_ms, status_code, error, response_body';
my $event = ask("SELECT event_id FROM outbox.deliveries WHERE endpoint = 'acme.b' AND status = 'dead' ORDER BY seq LIMIT 1");
foreach my $case (
	[ "'acme.b'", "endpoint = 'acme.b'" ],
	[ "tenant => 'acme'", "tenant = 'acme'" ],
	[ "'archive', event => '$event'", "endpoint = 'archive' AND event_id = '$event'" ],
	[ "tenant => 'acme', event => '$event'", "tenant = 'acme' AND event_id = '$event'" ],
	[ "tenant => 'globex', event => '$event'", 'false' ],
	[ "tenant => 'acme', event => '$event'::uuid", "endpoint = 'acme.b' AND event_id = '$event'" ])
{
	my ($arguments, $where) = @$case;
	my $view = ask("SELECT $attempt FROM outbox.attempts WHERE $where ORDER BY seq DESC, endpoint, started_at DESC");

	foreach my $size (6, 1000)
	{
		my (undef, @rows) = pages('attempts_page', $arguments, $attempt, $size);
		is(join("\n", @rows), $view, "requests: $arguments, $size a page");
	}
	isnt($view, '', 'with something to show') if $where ne 'false';
}
is(ask("SELECT count(*) FROM outbox.attempts_page('acme.b', event => '$event')"), '2', 'both requests of a dead delivery');

# An application may use an id for two events, in two pieces of the log.  Each page has the rows behind its cursor.
my $twice = ask("SELECT event_id FROM outbox.deliveries WHERE endpoint = 'acme.a' AND topic = 'a.x' AND status = 'delivered' ORDER BY seq LIMIT 1");
ask("INSERT INTO outbox.events (id, piece, topic, payload, tenant) SELECT '$twice', (piece + 1) % 3, 'b.x', '{\"n\": 300}', 'acme' FROM outbox.pieces WHERE log = 'events'");
ok(wait_sql($node, "SELECT status = 'delivered' FROM outbox.deliveries WHERE event_id = '$twice' AND endpoint = 'acme.b'"), 'an id is used twice');
foreach my $case (
	[ 'deliveries_page', $delivery, "outbox.deliveries WHERE $of_acme", '' ],
	[ 'attempts_page', $attempt, "outbox.attempts WHERE tenant = 'acme'", ', started_at DESC' ])
{
	my ($function, $columns, $view, $order) = @$case;
	my $rows = ask("SELECT $columns FROM $view AND event_id = '$twice' ORDER BY seq DESC, endpoint$order");
	foreach my $size (1, 2, 1000)
	{
		my (undef, @shown) = eval { pages($function, "tenant => 'acme', event => '$twice'", $columns, $size) };
		is(join("\n", @shown), $rows, "$function of an id that was used twice, $size a page") or diag($@);
	}
	like($rows, qr/\n/, 'rows of both events');
}

# An event that the log has no more, and is older than all that it has of the tenant
my $upto = ask("SELECT created_at FROM outbox.events WHERE id = '$event'");
ask("INSERT INTO outbox.kept_events SELECT seq, xid, epoch, id, created_at, expires_at, topic, type, key, tenant, headers, payload, body, content_type"
	  . " FROM outbox.events WHERE id = '$event'; DELETE FROM outbox.events WHERE tenant = 'acme' AND created_at <= '$upto'");
is(ask("SELECT event_id, status FROM outbox.deliveries_page(tenant => 'acme', $_ to_time => '$upto')"), "$event|dead", "a dead letter of long ago $_")
  foreach '', "status => 'dead',", "from_time => '2000-01-01',";

# --- Arguments

foreach my $case (
	[ 'deliveries_page()', '22004', 'endpoint and tenant are both null' ],
	[ 'attempts_page()', '22004', 'endpoint and tenant are both null' ],
	[ "deliveries_page('none')", '42704', 'endpoint "none" does not exist' ],
	[ "deliveries_page('globex.a', 'acme')", '42704', 'endpoint "globex.a" does not exist' ],
	[ "attempts_page('globex.a', 'acme')", '42704', 'endpoint "globex.a" does not exist' ],
	[ "deliveries_page('archive', 'acme')", '42704', 'endpoint "archive" does not exist' ],
	[ "deliveries_page('archive', status => 'late')", '22023', 'unknown status "late"' ],
	[ "deliveries_page('archive', page_size => 0)", '22023', 'invalid page_size 0' ],
	[ "attempts_page('archive', page_size => 1001)", '22023', 'invalid page_size 1001' ],
	[ "attempts_page('archive', page_size => NULL)", '22023', 'invalid page_size NULL' ],
	[ "deliveries_page('archive', before => '17')", '22023', 'invalid cursor' ],
	[ "attempts_page('archive', before => 'x:1:1')", '22023', 'invalid cursor' ])
{
	my ($call, $sqlstate, $words) = @$case;
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT * FROM outbox.$call");
	like($err, qr/$sqlstate: \Q$words\E\nHINT/, "$call: $sqlstate");
}

# --- What a page reads does not grow with the log

# Blocks that a query reads, when its plans are made already
sub blocks
{
	my ($query) = @_;
	my @plan = split /\n/, ask("$query \\g /dev/null\nEXPLAIN (ANALYZE, BUFFERS, TIMING off) $query");
	my ($line) = grep { /Buffers:/ } @plan;
	my %n = $line =~ /(hit|read)=(\d+)/g;
	return ($n{hit} // 0) + ($n{read} // 0);
}

my %page = (
	'an endpoint of a tenant' => "SELECT * FROM outbox.deliveries_page('acme.a')",
	'an endpoint without a tenant' => "SELECT * FROM outbox.deliveries_page('archive')",
	'a tenant' => "SELECT * FROM outbox.deliveries_page(tenant => 'acme')",
	'dead deliveries of a tenant' => "SELECT * FROM outbox.deliveries_page(tenant => 'acme', status => 'dead')",
	'requests to an endpoint' => "SELECT * FROM outbox.attempts_page('acme.b')",
	'requests of a tenant' => "SELECT * FROM outbox.attempts_page(tenant => 'acme')",
	'the view, for a tenant' => "SELECT * FROM outbox.deliveries WHERE tenant = 'acme' ORDER BY seq DESC LIMIT 20",
	'dead letters of a tenant' => "SELECT * FROM outbox.dead_letters WHERE tenant = 'acme'",
	'figures of a tenant' => "SELECT * FROM outbox.stats WHERE tenant = 'acme'",
	'the view, for an endpoint' => "SELECT * FROM outbox.deliveries WHERE endpoint = 'archive' ORDER BY seq DESC LIMIT 20",
	'the view of requests' => "SELECT * FROM outbox.attempts WHERE endpoint = 'archive' ORDER BY seq DESC LIMIT 20");
my %before = map { $_ => blocks($page{$_}) } keys %page;
ask(q{UPDATE outbox.endpoint_settings SET state = 'paused', reason = 'by the test'; SELECT outbox.endpoint_changed(0)});
ask(q{INSERT INTO outbox.events (topic, payload, tenant) SELECT 'a.x', '{}', 'globex' FROM generate_series(1, 60000)});
ask(q{INSERT INTO outbox.attempt_log SELECT e.seq, e.created_at, e.id, s.endpoint_id, 1, 1, 200, 0, 0
	FROM outbox.events e, outbox.endpoint_settings s WHERE s.name IN ('globex.a', 'archive') AND e.topic = 'a.x' AND e.tenant = 'globex'
	ON CONFLICT DO NOTHING});
ask(park_as_dead("s.name = 'globex.a' AND e.topic = 'a.x' AND e.tenant = 'globex'") . '; ANALYZE');
foreach my $what (sort keys %page)
{
	my $now = blocks($page{$what});
	cmp_ok($now, '<', 2 * $before{$what} + 500, "$what: $before{$what} blocks, and $now after 60000 events of others");
}

is(ask("SELECT (SELECT count(*) FROM outbox.deliveries_page(tenant => 'newcomer')) + (SELECT count(*) FROM outbox.attempts_page(tenant => 'newcomer'))"),
	'0', 'a tenant without endpoints gets no row, and no cursor that tells of others');

# An endpoint that wants few of the events: the first page has what there is among 60,000
# others, or says how far it has read.  Its number has ten digits.
ask("ALTER SEQUENCE outbox.endpoint_settings_endpoint_id_seq RESTART WITH 2000000000");
ask("SELECT outbox.create_endpoint('rare', 'http://127.0.0.1:1/', topics => '{rare.*}', start_at => 'beginning'); SELECT outbox.pause_endpoint('rare')");
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.subscriptions v JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'rare'"), 'there');
my $rare = ask("SELECT outbox.emit('rare.a', '{}')");
ask(q{INSERT INTO outbox.events (topic, payload) SELECT 'a.x', '{}' FROM generate_series(1, 60000); ANALYZE outbox.events});
is(ask("SELECT event_id, cursor LIKE '%:2000000000:0' FROM outbox.deliveries_page('rare') LIMIT 1"), "$rare|t", 'the first page has it');
cmp_ok(blocks("SELECT * FROM outbox.deliveries_page('rare')"), '<', 12000, 'and reads no more than it has to');
my (undef, @rare) = pages('deliveries_page', "'rare'", 'event_id', 20);
is("@rare", $rare, 'the pages after it end');
ask(q{INSERT INTO outbox.events (topic, payload) SELECT 'a.x', '{}' FROM generate_series(1, 60000); ANALYZE outbox.events});
is(ask("SELECT count(*), count(event_id), count(cursor) FROM outbox.deliveries_page('rare')"), '1|0|1', 'a page without a delivery has a cursor');
(undef, @rare) = pages('deliveries_page', "'rare'", 'event_id', 20);
is("@rare", $rare, 'the pages after it have what there is');

# --- outbox.stats is never worth compiling

my ($cost) = ask('EXPLAIN SELECT * FROM outbox.stats') =~ /cost=[\d.]+\.\.([\d.]+)/;
ask("INSERT INTO outbox.endpoint_settings (name, url, topics, format, ordering, on_exhausted, max_in_flight, timeout, connect_timeout,"
	  . " max_age, backoff_base, backoff_max, batch_size, batch_wait, state, start_snapshot, start_seq_low)"
	  . " SELECT 'many.' || n, url, '{none.a}', format, ordering, on_exhausted, max_in_flight, timeout, connect_timeout,"
	  . " max_age, backoff_base, backoff_max, batch_size, batch_wait, 'paused', start_snapshot, start_seq_low"
	  . " FROM outbox.endpoint_settings, generate_series(1, 10000) n WHERE name = 'archive'; ANALYZE");
($cost) = ask('EXPLAIN SELECT * FROM outbox.stats') =~ /cost=[\d.]+\.\.([\d.]+)/;
cmp_ok($cost, '<', 100000, 'at 10,000 endpoints its cost stays below jit_above_cost');
($cost) = ask("EXPLAIN SELECT * FROM outbox.stats WHERE endpoint = 'many.77'") =~ /cost=[\d.]+\.\.([\d.]+)/;
cmp_ok($cost, '<', 100, 'and that of one endpoint is that of one');

$node->stop;
done_testing();
