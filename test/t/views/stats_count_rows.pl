# The numbers of outbox.stats are as counting the rows yields.
# They are compared in one snapshot, every second of a run under load: with filters, an
# open breaker, a paused endpoint, an alter, dead deliveries that block, and workers that
# restart.  What has happened within a second may not be in both yet: by so much they
# may differ.  In the end they are equal.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{SECONDS} || 10;
my $node = outbox_node('main', conf => "restart_after_crash = on\nmax_prepared_transactions = 10\n");
my $receiver = OutboxTest::Receiver->new('main');
my $quick = "backoff_base => '50 ms', backoff_max => '300 ms'";

endpoint($node, $receiver, 'plain', '/ok/plain', $quick);
endpoint($node, $receiver, 'filtered', '/ok/filtered', "filter => '\$.n < 40', $quick");
endpoint($node, $receiver, 'fails', '/fail/fails?rate=0.2', "max_attempts => 2, $quick");
endpoint($node, $receiver, 'broken', '/status/500/broken',
	"backoff_base => '300 ms', backoff_max => '1 s'");
endpoint($node, $receiver, 'altered', '/slow/altered?ms=20', "topics => '{s.a}', $quick");
endpoint($node, $receiver, 'paused', '/ok/paused', $quick);
endpoint($node, $receiver, 'hangs', '/hang/hangs', "topics => '{s.a}', max_in_flight => 3, timeout => '1 h'");
is(ask('SELECT retained_by IS NULL FROM outbox.status'), 't', 'no endpoint is behind in a log that never had an event');
# At the first event these are stuck
foreach my $name (qw(stuck stuckbatch stuckkeys))
{
	endpoint($node, $receiver, $name, "/status/500/$name",
		"topics => '{s.a}', on_exhausted => 'block', max_attempts => 1, ordering => "
		  . ($name eq 'stuckkeys' ? "'key'" : "'strict'") . ($name eq 'stuckbatch' ? ', batch_size => 5' : ''));
}
ask("SELECT outbox.pause_endpoint('paused')");

# "moved": what may have been different a second ago, and what is emitted behind the snapshot
my $count = <<'SQL';
WITH d AS (
    SELECT endpoint, count(*) FILTER (WHERE status IN ('pending', 'processing')) AS waiting,
           count(*) FILTER (WHERE status = 'retrying') AS retrying,
           count(*) FILTER (WHERE status = 'blocked') AS blocked,
           count(*) FILTER (WHERE status = 'dead') AS dead,
           min(created_at) FILTER (WHERE status IN ('pending', 'processing') OR (status = 'blocked' AND NOT EXISTS (
               SELECT FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id)
               WHERE k.seq = d.seq AND s.name = d.endpoint))) AS oldest,
           count(*) FILTER (WHERE created_at > now() - interval '1 s') AS emitted
    FROM outbox.deliveries d WHERE status <> 'scheduled' GROUP BY 1),
a AS (
    SELECT endpoint, count(*) FILTER (WHERE status_code BETWEEN 200 AND 299) AS good,
           -- what was broken off and sent again has not failed
           count(*) FILTER (WHERE status_code NOT BETWEEN 200 AND 299 OR (status_code IS NULL
                            AND error !~ '^the (endpoint was changed or moved|worker ended) ')) AS bad,
           count(*) FILTER (WHERE started_at + duration_ms * interval '1 ms'
                                  > now() - interval '1 s') AS made
    FROM outbox.attempts GROUP BY 1)
SELECT json_object_agg(s.endpoint, json_build_object(
    'moved', COALESCE(d.emitted, 0) + 2 * COALESCE(a.made, 0) + n.later,
    'undelivered', COALESCE(d.waiting + d.retrying + d.blocked, 0),
    'waiting', COALESCE(d.waiting, 0),
    'retrying', COALESCE(d.retrying, 0),
    'blocked', COALESCE(d.blocked, 0),
    'dead', COALESCE(d.dead, 0),
    'delivered', COALESCE(a.good, 0),
    'failed_attempts', COALESCE(a.bad, 0),
    'oldest', COALESCE(extract(epoch FROM now() - d.oldest), 0),
    'retained', COALESCE(b.bytes, 0)::int8))
FROM outbox.endpoints s(endpoint)
CROSS JOIN (SELECT (SELECT last_value FROM outbox.events_seq) - max(seq) AS later FROM outbox.events) n
LEFT JOIN d USING (endpoint) LEFT JOIN a USING (endpoint)
LEFT JOIN LATERAL (
    SELECT l.bytes * count(*) FILTER (WHERE NOT pg_visible_in_snapshot(e.xid, p.read)
                                      AND NOT COALESCE(e.seq <= p.last_seq AND pg_visible_in_snapshot(e.xid, p.reading), false))
           / count(*) AS bytes
    FROM outbox.events e, outbox.endpoint_positions p, outbox.log_size_now() l
    WHERE p.name = s.endpoint GROUP BY l.bytes) b ON true
SQL

# First what the worker published, then, with the same snapshot, the count, which
# takes its time.
my $both = <<"SQL";
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT jsonb_agg(q) FROM (
    SELECT s.endpoint, s.pending_exact, s.pending + s.processing + s.retrying + s.blocked AS undelivered,
           s.pending + s.processing AS waiting, s.retrying, s.blocked, s.dead, s.delivered, s.failed_attempts,
           COALESCE(extract(epoch FROM s.oldest_pending_age), 0) AS oldest, s.retained_bytes AS retained,
           w.last_loop_at > clock_timestamp() - interval '0.3 s' AND clock_timestamp() - now() < interval '0.3 s' AS fresh
    FROM outbox.stats s LEFT JOIN outbox.workers w ON w.datname = current_database()) q;
$count;
COMMIT;
SQL
my @counts = qw(undelivered waiting retrying blocked dead delivered failed_attempts);
my @lagging = qw(undelivered waiting oldest retained);

sub look
{
	my ($rc, $out) = $node->psql('postgres', $both);
	return if $rc != 0;
	my ($published, $counted) = split /\n/, $out, 2;
	$counted = decode_json($counted);
	return map { { %$_, counted => $counted->{ $_->{endpoint} } } } @{ decode_json($published) };
}

# What is different beyond the tolerance of a row
sub differences
{
	my ($row, $tolerance) = @_;
	my @wrong;

	foreach my $what (@counts)
	{
		next if !$row->{pending_exact} && grep { $_ eq $what } @lagging;
		push @wrong, "$what $row->{$what}, counted $row->{counted}{$what}"
		  if abs($row->{$what} - $row->{counted}{$what}) > $tolerance;
	}
	return @wrong if !$row->{pending_exact};
	push @wrong, "oldest $row->{oldest} s, counted $row->{counted}{oldest} s"
	  if $tolerance == 0 && abs($row->{oldest} - $row->{counted}{oldest}) > 1;
	push @wrong, "retained $row->{retained} bytes, counted $row->{counted}{retained}"
	  if $tolerance == 0 && abs($row->{retained} - $row->{counted}{retained}) > 0.1 * $row->{counted}{retained} + 20000;
	return @wrong;
}

my ($judged, $skipped) = (0, 0);

sub sample
{
	my ($when) = @_;
	my @wrong;

	foreach my $row (look())
	{
		# A worker that got no processor time is not judged.
		if (!$row->{fresh}) { $skipped++; next }
		$judged++;
		push @wrong, map { "$row->{endpoint}: $_ (may differ by $row->{counted}{moved})" }
		  differences($row, $row->{counted}{moved});
	}
	is("@wrong", '', $when);
	return;
}

# Nothing but those that are broken, hang or are stuck has anything left to do.
sub exactly
{
	my ($when) = @_;
	my @wrong = ('nothing was seen');

	wait_until
	{
		my @rows = look();
		@wrong = @rows == 10 ? () : ('an endpoint is missing');
		foreach my $row (@rows)
		{
			push @wrong, map { "$row->{endpoint}: $_" }
			  ($row->{pending_exact} ? () : 'not exact'), differences($row, 0);
		}
		!@wrong;
	}
	"$when: equal" or diag(join "\n", @wrong);
	is("@wrong", '', $when);
	return;
}

my $producer = start_producer(
	$node, PostgreSQL::Test::Utils::tempdir() . '/producer',
	rate => 150,
	keys => 10,
	topic => 's',
	routes => '{"a": {"must": []}, "b": {"must": []}}');
my %at = (
	int($seconds * 0.3) => sub { ask("SELECT outbox.alter_endpoint('altered', topics => '{s.*}')"); 'altered' },
	int($seconds * 0.5) => sub {
		my $pid = worker_pid($node);
		kill 'TERM', $pid;
		new_worker($node, $pid);
		'the worker was terminated';
	},
	int($seconds * 0.7) => sub {
		my $pid = worker_pid($node);
		kill 'KILL', $pid;
		new_worker($node, $pid);
		'the worker was killed';
	});
foreach my $second (1 .. $seconds)
{
	my $what = $at{$second} ? $at{$second}->() : 'going on';
	usleep(1_000_000);
	sample("second $second: $what");
}
# On a busy machine fewer comparisons count, so more of them are made.
for (my $end = time + $OutboxTest::timeout; $judged <= 10 * $seconds / 2 && time < $end;)
{
	usleep(200_000);
	sample('until enough was seen');
}
stop_producer($producer);
cmp_ok($judged, '>', 10 * $seconds / 2, "$judged rows were compared ($skipped skipped)");
ok(wait_sql($node, "SELECT state = 'backing_off' FROM outbox.stats WHERE endpoint = 'broken'"), 'a breaker was open all the time');
ok(wait_sql($node, "SELECT pending > 0.9 * (SELECT count(*) FROM outbox.events) FROM outbox.stats WHERE endpoint = 'paused'"),
	'and one was paused');

# The broken one would go on failing
ask("SELECT outbox.pause_endpoint('broken')");
exactly('when it is quiet');
is(ask("SELECT string_agg(endpoint || ' ' || pending || ' ' || (blocked > 100), ', ' ORDER BY endpoint)"
		  . " FROM outbox.stats WHERE endpoint IN ('stuck', 'stuckbatch')"),
	'stuck 0 true, stuckbatch 0 true', 'all waits behind the dead ones');
ask("SELECT outbox.cancel(event_id, endpoint) FROM (SELECT d.*, row_number() OVER (PARTITION BY endpoint ORDER BY seq) AS n"
	  . " FROM outbox.deliveries d WHERE endpoint IN ('stuck', 'stuckbatch', 'stuckkeys', 'paused')"
	  . " AND status IN ('blocked', 'pending')) d WHERE n IN (2, 3, 5, 20, 100)");
ok(wait_sql($node, "SELECT count(*) = 20 FROM outbox.deliveries WHERE status = 'cancelled'"), 'some were cancelled');
exactly('after that');
ask("SELECT outbox.pause_endpoint('stuckkeys'), outbox.discard('stuckkeys')");
ok(wait_sql($node, "SELECT dead = 0 FROM outbox.stats WHERE endpoint = 'stuckkeys'"), 'a paused one: its dead are discarded');
exactly('after these');

# Nothing but the cancelled event wakes the worker, and the views show it all the same
$node->append_conf('postgresql.conf', "outbox.wakeup_interval = 60s\n");
$node->reload;
ok(wait_sql($node, "SELECT setting = '60000' FROM pg_settings WHERE name = 'outbox.wakeup_interval'"), 'the worker does not wake by itself');
exactly('for a while');
foreach my $id (split /\n/, ask("SELECT event_id FROM outbox.deliveries WHERE endpoint = 'stuckbatch'"
	  . " AND status = 'blocked' ORDER BY seq LIMIT 3"))
{
	ask("SELECT outbox.cancel('$id', 'stuckbatch')");
}
exactly('one cancelled soon after another');
$node->append_conf('postgresql.conf', "outbox.wakeup_interval = 1s\n");
$node->reload;
ask("SELECT outbox.alter_endpoint('paused', topics => '{s.b}')");
exactly('after another alter');
my $before = ask('SELECT sum(delivered), sum(failed_attempts) FROM outbox.stats');
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
exactly('after a restart of the worker');
$node->restart;
worker_pid($node);
exactly('after a restart of the server');
is(ask('SELECT sum(delivered), sum(failed_attempts) FROM outbox.stats'), $before, 'counters survive');

# An event that comes long after everything else is no older than it is
ask("SELECT outbox.resume_endpoint('paused')");
ok(wait_sql($node, "SELECT pending = 0 FROM outbox.stats WHERE endpoint = 'paused'"), 'resumed');
ask("SELECT outbox.pause_endpoint('paused')");
ask("SELECT outbox.emit('s.b', '{\"n\": 1}')");
exactly('one new event');
cmp_ok(ask("SELECT extract(epoch FROM oldest_pending_age) FROM outbox.stats WHERE endpoint = 'paused'"),
	'<', ask("SELECT extract(epoch FROM clock_timestamp() - max(created_at)) + 0.5 FROM outbox.events"),
	'it is as old as the time since its emit');

# Rates and latencies, by the attempts.  The receiver takes so long for each that
# what a busy machine adds between its answer and the worker's clock is little.
sub at_pace
{
	my ($ms, $n) = @_;
	my $url = $receiver->url("/slow/plain?ms=$ms");
	my $slow = "SELECT count(*) FROM outbox.attempts WHERE endpoint = 'plain' AND duration_ms >= $ms";
	my $before = ask($slow);

	ask("SELECT outbox.alter_endpoint('plain', topics => '{t.*}', url => '$url')");
	emit($node, 't.one', "{\"n\": $_}") foreach 1 .. $n;
	ok(wait_sql($node, $slow, $before + $n), "$n at $ms ms");
}
at_pace(100, 90);
at_pace(1000, 10);
my $paces = <<'SQL';
WITH a AS (
    SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY ms) AS p50,
           percentile_disc(0.99) WITHIN GROUP (ORDER BY ms) AS p99, max(at) AS last,
           count(*) FILTER (WHERE at > clock_timestamp() - interval '60 s') AS recent
    FROM (SELECT started_at + duration_ms * interval '1 ms' AS at,
                 extract(epoch FROM a.started_at + a.duration_ms * interval '1 ms' - e.created_at) * 1000 AS ms
          FROM outbox.attempts a JOIN outbox.events e ON e.id = a.event_id
          WHERE endpoint = 'plain' AND status_code = 200 AND attempt = 1
          AND a.started_at > (SELECT started_at FROM outbox.workers)) a)
SELECT %s FROM outbox.stats, a WHERE endpoint = 'plain'
SQL
ok(wait_sql($node, sprintf $paces, <<'SQL'), 'latencies within their buckets, rate and time of the last success')
latency_p50_ms BETWEEN p50 / 1.3 AND p50 * 1.3
AND latency_p99_ms BETWEEN p99 / 1.3 AND p99 * 1.3
AND abs(extract(epoch FROM last_success_at - last)) < 2
AND abs(rate_per_s * 60 - recent) <= 0.1 * recent + 2
SQL
	or diag ask(sprintf $paces, 'a, stats');

# The next worker of an endpoint goes on with its rate
$pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
ok(wait_sql($node, "SELECT last_success_at IS NULL FROM outbox.stats WHERE endpoint = 'plain'"), 'another worker');
is(ask(<<'SQL'), 't', 'its rate is that of the last minute');
SELECT abs(rate_per_s * 60 - (SELECT count(*) FROM outbox.attempts WHERE endpoint = 'plain' AND status_code = 200
           AND started_at > pg_postmaster_start_time()
           AND started_at + duration_ms * interval '1 ms' > clock_timestamp() - interval '60 s')) <= 10
FROM outbox.stats WHERE endpoint = 'plain'
SQL

$node->stop;
done_testing();
