"""What each function of the portal takes among many endpoints of many tenants."""
import time

from machine import BenchError, cpu_ms, wait_until
from report import percentile, text

SECTION = "Portal"
EACH = 4						# endpoints of a tenant
EVENTS = 25					# of each tenant, at each of its endpoints
LARGE = 100000				# of one more tenant, at its only endpoint
TOPICS = 300				# of the catalogue
WARM = 20						# calls before those that are counted
LIMIT = 3						# ms
SECRETS_LIMIT = 3				# s, for the secrets of a quarter of the endpoints in one call

# Words, SQL with the number of the call as {n}, and of its tenant as {t}: 'e{t}' is an endpoint that
# it has.  A call is a transaction of its own, as in a pool of connections.
CALLS = [
    ("portal_endpoints() of a tenant", "SELECT outbox.portal_endpoints('t{t}')"),
    ("portal_endpoints() of one endpoint", "SELECT outbox.portal_endpoints('t{t}', 'e{t}')"),
    ("portal_secret()", "SELECT outbox.portal_secret('t{t}', 'e{t}')"),
    ("portal_event_types()", "SELECT outbox.portal_event_types('t{t}')"),
    ("portal_deliveries() of a tenant", "SELECT outbox.portal_deliveries('t{t}')"),
    ("portal_deliveries() of an endpoint", "SELECT outbox.portal_deliveries('t{t}', 'e{t}')"),
    ("portal_deliveries() of a status that none has",
     "SELECT outbox.portal_deliveries('t{t}', status => 'dead')"),
    ("portal_deliveries() of a topic that none has",
     "SELECT outbox.portal_deliveries('t{t}', topics => '{{none}}')"),
    ("portal_attempts() of a tenant", "SELECT outbox.portal_attempts('t{t}')"),
    ("portal_attempts() of an endpoint", "SELECT outbox.portal_attempts('t{t}', 'e{t}')"),
    ("portal_delivery()", "SELECT outbox.portal_delivery('t{t}', 'e{t}', e.id) FROM bench_events e WHERE e.n = {t}"),
    ("portal_figures() of a tenant", "SELECT outbox.portal_figures('t{t}')"),
    ("portal_figures() of an endpoint", "SELECT outbox.portal_figures('t{t}', 'e{t}')"),
    ("portal_changes() of a tenant", "SELECT outbox.portal_changes('t{t}')"),
    ("portal_changes() of an endpoint", "SELECT outbox.portal_changes('t{t}', 'e{t}')"),
    ("portal_create_endpoint()",
     "SELECT outbox.portal_create_endpoint('t{t}', '{url}', '{{\"topics\": [\"bench.*\"], \"label\": \"x\"}}',"
     " name => 'new{n}', idempotency_key => 'k{n}')"),
    ("portal_alter_endpoint()", "SELECT outbox.portal_alter_endpoint('t{t}', 'e{t}', '{{\"rate_limit\": 1{n}}}')"),
    ("portal_alter_endpoint(), another URL and filter",
     "SELECT outbox.portal_alter_endpoint('t{t}', 'e{t}', '{{\"url\": \"{url}{n}\", \"filter\": \"$.order < 10{n}\"}}')"),
    ("portal_pause_endpoint()", "SELECT outbox.portal_pause_endpoint('t{t}', 'e{t}')"),
    ("portal_resume_endpoint()", "SELECT outbox.portal_resume_endpoint('t{t}', 'e{t}')"),
    ("portal_rotate_secret()", "SELECT outbox.portal_rotate_secret('t{t}', 'e{t}')"),
    ("portal_send_test()", "SELECT outbox.portal_send_test('t{t}', 'e{t}')"),
    ("portal_retry() of an event",
     "SELECT outbox.portal_retry('t{t}', 'e{t}', e.id) FROM bench_events e WHERE e.n = {t}"),
    ("portal_retry() of all that failed", "SELECT outbox.portal_retry('t{t}', 'e{t}')"),
    ("portal_replay()", "SELECT outbox.portal_replay('t{t}', 'e{t}', now() - interval '1 h', now())"),
    ("portal_replays()", "SELECT outbox.portal_replays('t{t}', 'e{t}')"),
    ("portal_cancel_replay()", "SELECT outbox.portal_cancel_replay('t{t}', 'e{t}', outbox.portal_cipher(max(r.replay_id), 26, false))"
     " FROM outbox.replays r JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'e{t}'"),
    ("portal_drop_endpoint()", "SELECT outbox.portal_drop_endpoint('t{t}', 'e{t}', discard => true)"),
]

# Not promised: what grows with the catalogue, and what a tenant with many events may search for
LARGE_CALLS = [
    ("portal_asyncapi() of {topics} topics", "SELECT outbox.portal_asyncapi('large')"),
    ("portal_deliveries(), {large:,} events", "SELECT outbox.portal_deliveries('large', 'elarge')"),
    ("portal_deliveries() of a status that none has, {large:,} events",
     "SELECT outbox.portal_deliveries('large', status => 'pending')"),
    ("portal_deliveries() of a topic that none has, {large:,} events",
     "SELECT outbox.portal_deliveries('large', topics => '{{none}}')"),
    ("portal_attempts(), {large:,} events", "SELECT outbox.portal_attempts('large', 'elarge')"),
]


def times(session, sql, url, tenants, calls):
    """Milliseconds of each call, and of CPU, sorted; those that warm the session up are left out."""
    found, used = [], []
    pid = session.value("SELECT pg_backend_pid()")
    for n in range(WARM + calls):
        call = sql.format(n=n, t=n * 7 % tenants, url=url)
        begun, ran = time.monotonic(), cpu_ms(pid)
        session.rows(call)
        found.append((time.monotonic() - begun) * 1000)
        used.append(cpu_ms(pid) - ran)
    return sorted(found[WARM:]), sorted(used[WARM:])


def fill(bench, cluster, endpoints, tenants, large):
    """Endpoints that have delivered some events of their tenants each."""
    url = bench.nginx.url()
    for first in range(0, endpoints, 1000):
        cluster.sql.rows(f"SELECT count(outbox.create_endpoint('e' || i, '{url}', tenant => 't' || i % {tenants}))"
                         f" FROM generate_series({first}, {min(first + 1000, endpoints) - 1}) AS i")
    cluster.sql.rows("SELECT count(outbox.set_event_type('bench.t' || i, 'One of the topics.', '{\"type\": \"object\"}',"
                     f" '{{\"order\": 1}}')::text) FROM generate_series(1, {TOPICS}) AS i")
    cluster.sql.rows(f"SELECT outbox.create_endpoint('elarge', '{url}', tenant => 'large')")
    cluster.sql.rows("SELECT count(outbox.emit('bench.order', '{\"order\": 1}', key => 'k' || i, tenant => 'large'))"
                     f" FROM generate_series(1, {large}) AS i")
    cluster.sql.rows("CREATE TABLE bench_events (n int, id uuid)")
    for _ in range(EVENTS):
        cluster.sql.rows("TRUNCATE bench_events")
        cluster.sql.rows("INSERT INTO bench_events SELECT i, outbox.emit('bench.order', '{\"order\": 1}', key => 'k' || i,"
                         f" tenant => 't' || i) FROM generate_series(0, {tenants - 1}) AS i")
    cluster.sql.rows("CREATE INDEX ON bench_events (n)")
    cluster.sql.rows("VACUUM ANALYZE bench_events")
    wait_until(lambda: cluster.sql.number("SELECT sum(delivered) FROM outbox.stats") >= endpoints * EVENTS + large, 600,
               "the events to be delivered")
    cluster.settle(5)
    # Else the first calls would write the pages that this has changed.
    cluster.sql.rows("VACUUM ANALYZE")
    cluster.sql.rows("CHECKPOINT")


def secrets(cluster, count):
    """Seconds that secrets take to come back, which no dump has."""
    cluster.sql.rows("CREATE TEMP TABLE bench_secrets AS SELECT jsonb_object_agg(name, outbox.endpoint_secret(name)) AS kept"
                     f" FROM (SELECT name FROM outbox.endpoint_settings ORDER BY endpoint_id LIMIT {count}) s")
    cluster.sql.rows("DELETE FROM outbox.endpoint_secrets k USING outbox.endpoint_settings s, bench_secrets b"
                     " WHERE s.endpoint_id = k.endpoint_id AND b.kept ? s.name")
    begun = time.monotonic()
    found = cluster.sql.number("SELECT outbox.set_secrets(kept) FROM bench_secrets")
    took = time.monotonic() - begun
    if found != count or cluster.sql.number("SELECT count(*) FROM outbox.endpoint_secrets") < found:
        raise BenchError(f"{found} of {count} secrets came back")
    return took


def measure(bench):
    report = bench.report
    endpoints, calls = bench.scale(20000, 2000), bench.scale(1000, 100)
    tenants = endpoints // EACH
    large = bench.scale(LARGE, LARGE // 10)
    cluster = bench.cluster("portal")
    fill(bench, cluster, endpoints, tenants, large)
    cluster.sql.rows("SELECT outbox.set_portal_limits(max_endpoints => 100, max_calls => 100000)")
    cluster.sql.rows("CREATE TABLE bench_rows (n int PRIMARY KEY)")
    flush, _ = times(cluster.sql, "INSERT INTO bench_rows VALUES ({n})", "", tenants, calls)
    report.add(SECTION, "an INSERT of one row, to compare with", f"p50 {text(percentile(flush, 50))} ms, p99 {text(percentile(flush, 99))} ms")
    for words, sql in CALLS:
        found, used = times(cluster.sql, sql, bench.nginx.url(), tenants, calls)
        p50, p99 = percentile(found, 50), percentile(found, 99)
        report.add(SECTION, words, f"p50 {text(p50)} ms, **p99 {text(p99)} ms**, CPU p50 {text(percentile(used, 50))} ms,"
                   f" p99 {text(percentile(used, 99))} ms", f"p99 ≤ {LIMIT} ms", p99 <= LIMIT)
    for words, sql in LARGE_CALLS:
        found, used = times(cluster.sql, sql, "", 1, calls // 10)
        report.add(SECTION, words.format(large=large, topics=TOPICS), f"p50 {text(percentile(found, 50))} ms,"
                   f" p99 {text(percentile(found, 99))} ms, CPU p50 {text(percentile(used, 50))} ms")
    took = secrets(cluster, tenants)
    report.add(SECTION, f"set_secrets() of {tenants:,} endpoints that had none", f"{text(took)} s", f"≤ {SECRETS_LIMIT} s",
               took <= SECRETS_LIMIT)
    cluster.check()
    cluster.stop()
