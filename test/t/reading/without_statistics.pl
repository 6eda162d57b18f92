# No statement of the worker needs statistics of the planner.
# Autovacuum is off, and the tables were vacuumed while they were empty, which is the worst that
# the planner can be told.  auto_explain shows what each statement has read.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Explained;
use Test::More;

my $rows = $ENV{ROWS} // 6_000;
my $keys = $rows / 4;

# The longest slice of any step is 5,000 rows.
my $most_rows = 5_500;

my $node = outbox_node('main', conf => explained_conf());
my $receiver = OutboxTest::Receiver->new('main', brief => 1);

vacuum_without_statistics($node);
log_plans($node, 1);

sub stats_show
{
	my ($condition, $name) = @_;

	ok(wait_sql($node, "SELECT $condition FROM outbox.stats WHERE endpoint = 'bulk'"), $name);
	return;
}

# ------------------------------------------------- plans that were made for empty tables

endpoint($node, $receiver, 'first', '/flaky/first?first=1',
	"topics => '{first.*}', backoff_base => '10 ms', backoff_max => '10 ms'");
$receiver->wait_delivered(1, id => emit($node, 'first.n', '0', "key => 'k'"));
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.parked'), 'a retry of one event');

# With 40 endpoints, memory has 500 retries of each.
ask("SELECT outbox.create_endpoint('idle' || n, '" . $receiver->url('/ok') . "', topics => '{idle}')"
	  . " FROM generate_series(1, 38) n");
ask("SELECT count(outbox.emit('bulk.n', to_jsonb(n), key => 'k' || n % $keys)) FROM generate_series(1, $rows) n");
my $url = $receiver->url('/ok/bulk');
ask(<<"SQL");
BEGIN;
SELECT outbox.create_endpoint('bulk', '$url', topics => '{bulk.*}', max_in_flight => 64, on_exhausted => 'block');
@{[park_as_dead("s.name = 'bulk' AND e.topic = 'bulk.n'")]};
COMMIT;
SQL
stats_show("dead = $rows", "$rows dead letters");
judge($node, 'dead letters', $most_rows);
ask("SELECT outbox.retry('bulk')");
stats_show("dead = 0 AND retrying < $rows / 2", 'most of them are tried again, and half are delivered');
judge($node, 'retries with plans for empty tables', $most_rows);

# --------------------------------------------------------- plans that are made anew

replace_worker($node);
stats_show('retrying = 0 AND dead = 0', 'the rest');
judge($node, 'retries after a restart', $most_rows);

# ------------------------------------------------------------- the steps of chores

log_plans($node, 0);
ask("SELECT count(outbox.emit('acme.n', to_jsonb(n), tenant => 'acme', dedup_key => 'd' || n)) FROM generate_series(1, $rows) n");
ask("SELECT count(outbox.emit('acme.n', to_jsonb(n), tenant => 'acme', deliver_at => now() + interval '1 day'))"
	  . " FROM generate_series(1, $rows) n");
ask(<<"SQL");
BEGIN;
SELECT outbox.create_endpoint(n, '$url', topics => '{acme.*}', tenant => 'acme') FROM unnest('{acme,gone}'::text[]) n;
INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, first_attempt_at, parked_at)
SELECT s.endpoint_id, e.seq, e.id, NULL, 'dead', 'max_attempts', 5, now(), now()
FROM outbox.endpoint_settings s, outbox.events e WHERE s.tenant = 'acme' AND e.topic = 'acme.n';
INSERT INTO outbox.attempt_log (seq, started_at, event_id, endpoint_id, attempt, duration_ms, piece, cause, error)
SELECT p.seq, now(), p.event_id, p.endpoint_id, 1, 1, 0, 0, 'refused' FROM outbox.parked p;
COMMIT;
SQL
ok(wait_sql($node, "SELECT sum(dead) = 2 * $rows FROM outbox.stats"), 'dead letters of a tenant');
skip_explained($node);
$node->append_conf('postgresql.conf', "outbox.retention = '2s'");
log_plans($node, 1);
ok(wait_sql($node, "SELECT count(*) = $rows FROM outbox.kept_events"), 'their piece of the log goes');
judge($node, 'rotation', $most_rows);
my ($pages) = map { /(\d+) pages .*p\.seq > \$1 AND p\.seq <= \$2/ ? $1 : () } worst_plans();
cmp_ok($pages, '<', 3000, 'and no slice reads all rows that were deleted before');
ask("SELECT outbox.drop_endpoint('gone', discard => true)");
ok(wait_sql($node, "SELECT count(*) = $rows FROM outbox.parked"), 'an endpoint is dropped');
judge($node, 'what a dropped endpoint leaves', $most_rows);
ask("SELECT outbox.discard('acme')");
ok(wait_sql($node, "SELECT sum(dead) = 0 FROM outbox.stats"), 'dead letters are discarded');
judge($node, 'discard', $most_rows);
ask("SELECT outbox.forget('acme')");
ok(wait_sql($node, 'SELECT bool_and(complete_at IS NOT NULL) FROM outbox.forgotten'), 'the tenant is forgotten');
judge($node, 'forget', $most_rows);

is(ask("SELECT count(*) FROM pg_statistic s JOIN pg_class c ON c.oid = s.starelid"
		  . " WHERE c.relnamespace = 'outbox'::regnamespace"), '0', 'there are no statistics');
note($_) foreach worst_plans();
$node->stop;
done_testing();
