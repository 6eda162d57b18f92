"""What a tenant notices of another one that emits a million events in one
transaction, or whose endpoints all hang."""
from latency import EMIT, emit_at
from receivers import Receiver
from report import text

SECTION = "Noisy tenants"
QUIET = EMIT.replace(")", ", tenant => 'quiet')")
RATE = 100
HANGING = 100


def stamps(bench, cluster, seconds, while_running=None):
    return emit_at(bench, cluster, RATE, seconds, while_running, statement=QUIET, more=", tenant => 'quiet'")


def crowd(bench, cluster, count):
    """One transaction of a tenant that has an endpoint of its own."""
    cluster.create_endpoint("noisy", bench.nginx.url(), ", tenant => 'noisy'")

    def emit():
        cluster.sql.rows("SELECT count(outbox.emit('bench.crowd', '{\"n\": 1}', tenant => 'noisy'))"
                         f" FROM generate_series(1, {count})")

    return emit


def hang(cluster, url):
    """Endpoints of one tenant that never answer, with more events than they may have in flight."""
    cluster.sql.rows(f"SELECT count(outbox.create_endpoint('hangs' || n, '{url}', tenant => 'hangs'))"
                     f" FROM generate_series(1, {HANGING}) AS n")

    def emit():
        cluster.sql.rows("SELECT count(outbox.emit('bench.hang', '{\"n\": 1}', tenant => 'hangs'))"
                         " FROM generate_series(1, 1000)")

    return emit


def measure(bench):
    report = bench.report
    seconds = bench.scale(60, 20)
    count = bench.scale(1000000, 200000)
    cluster = bench.cluster("tenants")
    stamps(bench, cluster, 2)
    alone = stamps(bench, cluster, seconds).percentiles(1)
    beside = stamps(bench, cluster, seconds, crowd(bench, cluster, count)).percentiles(1)
    cluster.drop_endpoint("noisy")
    silent = Receiver(bench.machine, silent=True)
    hanging = stamps(bench, cluster, seconds, hang(cluster, silent.url())).percentiles(1)
    cluster.check()
    cluster.stop()
    silent.stop()

    def row(words, got, limit):
        report.add(SECTION, words, f"p50 {text(got[0])} ms, **p99 {text(got[1])} ms**",
                   f"p99 ≤ {text(limit)} ms" if limit else "", got[1] <= limit if limit else None)

    row(f"{RATE} events/s of a tenant, emit → receiver, alone", alone, None)
    row(f"the same, beside a tenant that emits {count:,} events in one transaction", beside, 50)
    row(f"the same, beside a tenant whose {HANGING} endpoints all hang", hanging, alone[1] + 2)
