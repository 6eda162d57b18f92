# A call with much in it can be cancelled, or is short.
# Large payloads, many patterns, endpoints and numbers near 2^31 are passed to each function that has a
# loop over them.  What is added up may be more than PostgreSQL can hold at once.
use strict;
use warnings;

use OutboxTest;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE large AS SELECT
    (SELECT array_agg('a.t' || n || '.*') FROM generate_series(1, 10000) n) AS patterns,
    (SELECT array_agg(n) FROM generate_series(2147383647, 2147483646) n) AS ids,
    (SELECT jsonb_agg(n) FROM generate_series(1, 120000) n) AS payload,
    (SELECT jsonb_object_agg('k' || n, n) FROM generate_series(1, 40000) n) AS object,
    '\x070080ea30'::bytea || decode(repeat('0101', 400000), 'hex') AS counts,
    decode(repeat('0700020101', 200000), 'hex') AS entries,
    decode(repeat('01ff', 500000), 'hex') AS pending,
    repeat('k', 1000000) AS text;
SQL

# The same call again and again, in one statement
my %calls = (
	'topic_in with 10,000 patterns' => q(outbox.topic_in('b.c' || n, patterns)),
	'metric_series of 100,000 endpoints' => q((SELECT count(s) FROM outbox.metric_series(ids, ids::text[], n % 1000, 10) s)),
	'endpoint_stats with ids near 2^31' => q(outbox.endpoint_stats(2147483647 - n % 100)),
	'newest_position with ids near 2^31' => q(outbox.newest_position(2147483647 - n % 100, -n)),
	'is_asked' => q(outbox.is_asked(2147483647, 'retry', n)),
	'pending_seqs of 4,000,000' => q(cardinality(outbox.pending_seqs(substr(pending, 1, 1000000 - n % 2 * 2)))),
	'is_pending among 4,000,000' => q(outbox.is_pending(n, pending)),
	'figures_sum of 1 MB' => q(outbox.figures_sum(counts, NULL, n % 2 = 0)),
	'figures_sum of 200,000 entries' => q(outbox.figures_sum(entries, ARRAY[7], n % 2 = 0)),
	'figures_of 200,000 entries' => q((SELECT count(e) FROM outbox.figures_of(entries) e WHERE e.endpoint_id < n)),
	'filter_matches of 1 MB' => q(outbox.filter_matches(payload, '$[*] > 120000')),
	'filter_matches of 40,000 members' => q(outbox.filter_matches(object, '$.* > 40000')),
	'order_key of 1 MB' => q(outbox.order_key(text, text || n)),
	'emit of 1 MB' => q(outbox.emit('a', payload)),
	'emit of 1 MB of text' => q(outbox.emit('a', payload::text)),
	'check_url of 1 MB' => q(outbox.keeps_credentials('https://a.example/' || text, NULL, 'https://a.example/' || text || n, NULL)),
	'shown of 1 MB' => q(outbox.shown(n::int, 'https://a.example/' || text)));
foreach my $name (sort keys %calls)
{
	my $begun = time;
	my ($status, undef, $error) = $node->psql('postgres', "SET statement_timeout = '200 ms'; SELECT count($calls{$name}) FROM large, generate_series(1, 100000000) n");

	like($error, qr/canceling statement due to statement timeout/, "$name is cancelled");
	cmp_ok(time - $begun, '<', 10, "$name: soon");
}

# 1.1 GB of counts of 1,100 hours, which are in one bucket
$node->safe_psql('postgres', <<'SQL');
INSERT INTO outbox.figures (at, written, block, piece, entries)
SELECT h, now(), 0, 3 + extract(epoch FROM h - '2000-01-01Z'::timestamptz)::int8 / 3888000 % 3, counts
FROM large, generate_series(1, 1100) n, LATERAL (SELECT date_bin('90 days', now(), '2000-01-01') - n * interval '1 hour') t (h)
SQL
is($node->safe_psql('postgres', "SELECT bool_and(f ->> 'latency_p50_ms' IS NOT NULL), count(*) FROM outbox.figures(bucket => '90 days', from_time => now() - interval '90 days') f"),
	't|1', 'a bucket holds more counts than one value could');
$node->stop;
done_testing();
