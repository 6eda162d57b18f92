# The rows that are read to turn a time into a place in the log do not grow with the number of ticks.
# It is the place that reading all ticks would find, also where the clock was set back.  Then no page
# between two times lacks an event.
use strict;
use warnings;

use OutboxTest;
use Test::More;

# the worker delivers nothing, so that only the test writes ticks
my $node = outbox_node('main', conf => "outbox.enabled = off\nautovacuum = off\n");

sub rows_read
{
	my ($call) = @_;
	return (split /\n/, ask(<<"SQL"))[-1];
SELECT $call \\g /dev/null
BEGIN;
SELECT $call \\g /dev/null
SELECT sum(pg_stat_get_xact_tuples_returned(relid) + pg_stat_get_xact_tuples_fetched(relid)) FROM (
    SELECT c.oid AS relid FROM pg_class c WHERE c.relname ~ '^ticks' AND c.relnamespace = 'outbox'::regnamespace) t;
ROLLBACK;
SQL
}

ask("SELECT outbox.create_endpoint('a', 'https://example.com/', tenant => 't'), outbox.create_endpoint('b', 'https://example.com/'), outbox.claim_log()");
my @calls = (
	"outbox.resolve_start((now() - interval '500 s')::text, NULL)",
	"outbox.resolve_start(NULL, now() - interval '2 days')",
	"outbox.seek_endpoint('a', (now() - interval '500 s')::text)",
	"outbox.replay('a', now() - interval '500 s')",
	"outbox.portal_replay('t', 'a', now() - interval '500 s')");
my %before;
foreach my $ticks (1000, 100_000)
{
	ask("TRUNCATE outbox.ticks; INSERT INTO outbox.ticks
	     SELECT i / 40000, i, now() - ($ticks - i) * interval '1 s', '3:3:', i, i, i / 99000 FROM generate_series(1, $ticks) i");
	foreach my $statistics ('no', 'present')
	{
		ask('ANALYZE outbox.ticks') if $statistics eq 'present';
		foreach my $call (@calls)
		{
			my $rows = rows_read($call);
			$before{$call} //= $rows;
			cmp_ok($rows, '<=', 60, "$ticks ticks, $statistics statistics, $call: rows read of ticks");
		}
	}
}

# One event for each tick, and times that go back now and then: at a tick, and between two.
ask(<<'SQL');
TRUNCATE outbox.ticks;
SELECT setseed(0.5);
SELECT outbox.emit('a', '{}'::jsonb) FROM generate_series(1, 600);
CREATE TEMPORARY TABLE line AS
SELECT i, timestamptz '2026-01-01' + interval '1 s' * (i - 40 * sum((b < 0.02)::int) OVER (ORDER BY i)) AS at, c < 0.3 AS sudden
FROM (SELECT i, random() AS b, random() AS c FROM generate_series(1, 600) i) r;
UPDATE outbox.events e SET created_at = l.at + CASE WHEN l.sudden THEN interval '20 s' ELSE interval '-0.5 s' END
FROM line l WHERE l.i = e.seq - (SELECT min(seq) FROM outbox.events) + 1;
INSERT INTO outbox.ticks
SELECT i / 250, i, at, '3:3:', s.seq + i - 2, s.seq + i - 1, sum(COALESCE(at < before, false)::int) OVER (ORDER BY i)
FROM (SELECT *, lag(at) OVER (ORDER BY i) AS before FROM line) l, (SELECT min(seq) AS seq FROM outbox.events) s;
CREATE FUNCTION all_read(at timestamptz) RETURNS int8 STABLE LANGUAGE sql AS $$
    SELECT t.seq_low FROM outbox.ticks t
    WHERE t.taken_at <= at AND t.tick < COALESCE((
        SELECT min(q.tick)
        FROM (SELECT c.tick, c.taken_at, c.seq_high, lag(c.taken_at) OVER w AS before, lag(c.seq_low) OVER w AS low
              FROM outbox.ticks c WINDOW w AS (ORDER BY c.tick)) q
        WHERE q.taken_at > at
        OR (q.taken_at < q.before
            AND EXISTS (SELECT 1 FROM outbox.events e
                        WHERE e.seq > q.low AND e.seq <= q.seq_high AND e.created_at >= at))), t.tick + 1)
    ORDER BY t.tick DESC LIMIT 1
$$;
SQL
my $same = ask(<<'SQL');
SELECT count(*) FILTER (WHERE p.seq_low IS DISTINCT FROM COALESCE(all_read(at), 0)), count(DISTINCT p.seq_low) > 100,
    (SELECT count(DISTINCT clock) > 5 FROM outbox.ticks)
FROM generate_series(timestamptz '2026-01-01' - interval '300 s', timestamptz '2026-01-01' + interval '700 s', '0.7 s') at,
    outbox.resolve_start(NULL, at) p
SQL
is($same, '0|t|t', 'the place is the one that reading all ticks finds');

$same = ask(<<'SQL');
SELECT count(*) FILTER (WHERE p.n <> d.n), count(*) FILTER (WHERE d.n > 0) > 20
FROM (SELECT min(created_at) AS low, max(created_at) AS high FROM outbox.events) t, generate_series(t.low, t.high, '3 s') at,
    LATERAL (SELECT count(event_id) AS n FROM outbox.deliveries_page('b', from_time => at, to_time => at + interval '10 s', page_size => 1000)) p,
    LATERAL (SELECT count(*) AS n FROM outbox.events e WHERE e.created_at BETWEEN at AND at + interval '10 s') d
SQL
is($same, '0|t', 'pages between two times have all of their events');

$node->stop;
done_testing();
