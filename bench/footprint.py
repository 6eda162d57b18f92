"""Memory under a giant transaction, and what endpoints cost that an event does
not concern."""
import threading
import time

from latency import EMIT
from machine import HERE, BenchError, cpu_seconds, rss_anon
from report import median, text

SECTION = "Footprint"
MB = 1024 * 1024
BACKLOG = (100000, 10000)


def memory(bench, cluster, count):
    """Growth of the worker's private memory, in bytes, while it delivers one
    transaction of 'count' events."""
    nginx = bench.nginx
    cluster.create_endpoint("memory", nginx.url())
    cluster.emit(1000)
    cluster.wait_delivered("memory", 1000)
    cluster.settle(2)
    pid = cluster.worker()
    idle = rss_anon(pid)
    before = nginx.requests()
    peak = [idle]
    done = threading.Event()

    def watch():
        while not done.wait(0.05):
            peak[0] = max(peak[0], rss_anon(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        cluster.emit(count, per_transaction=count)
        nginx.wait_for(before + count, 1200)
        cluster.wait_delivered("memory", count + 1000)
    finally:
        done.set()
        watcher.join()
    cluster.drop_endpoint("memory")
    return idle, peak[0] - idle


def many(bench, cluster, others, rate, seconds):
    """CPU of the worker and WAL per event, with 'others' endpoints that do not
    want it beside the one that does."""
    nginx = bench.nginx
    cluster.create_endpoint("wanted", nginx.url(), ", topics => '{bench.latency}'")
    if others:
        cluster.sql.rows(
            f"SELECT outbox.create_endpoint('other_' || i, '{nginx.url()}',"
            " topics => ARRAY['other.' || i || '.*'])"
            f" FROM generate_series(1, {others}) AS i")
    cluster.settle(3)
    pid = cluster.worker()
    count = int(rate * seconds)
    start, cpu = cluster.lsn(), cpu_seconds(pid)
    emitter = bench.machine.start(
        HERE / "emitter", "-d", cluster.conninfo(), "-q", EMIT,
        "-o", bench.machine.dir / "footprint.emitted", "-r", rate, "-s", seconds,
        log=bench.machine.dir / "emitter.log")
    if emitter.wait(seconds + 60) != 0:
        raise BenchError((bench.machine.dir / "emitter.log").read_text())
    cluster.wait_delivered("wanted", count)
    cpu = cpu_seconds(pid) - cpu
    wal = cluster.wal_bytes(start, cluster.lsn())

    # A backlog, where there is no waiting for the next commit.
    backlog = bench.scale(*BACKLOG)
    cluster.pause("wanted")
    cluster.emit(backlog, topic="bench.latency")
    cluster.settle(2)
    before = nginx.requests()
    drained = cpu_seconds(pid)
    begun = time.monotonic()
    cluster.resume("wanted")
    ended = nginx.wait_for(before + backlog, 600)
    cluster.wait_delivered("wanted", count + backlog)
    drained = cpu_seconds(pid) - drained
    cluster.drop_endpoint("wanted")
    if others:
        cluster.sql.rows("SELECT outbox.drop_endpoint('other_' || i, discard => true)"
                         f" FROM generate_series(1, {others}) AS i")
    cluster.settle(1)
    return {"cpu_us": cpu * 1e6 / count, "wal": wal / count,
            "backlog_cpu_us": drained * 1e6 / backlog,
            "backlog_per_s": backlog / (ended - begun)}


def everybody(bench, cluster, others, events):
    """What a delivery costs when 'others' endpoints want every event, and how
    many positions are written meanwhile."""
    nginx = bench.nginx
    rows = cluster.sql.rows
    rows(f"SELECT outbox.create_endpoint('all_' || i, '{nginx.url()}',"
         f" topics => '{{bench.all}}') FROM generate_series(1, {others}) AS i")
    cluster.settle(3)
    pid = cluster.worker()

    def counts():
        return [int(cluster.sql.value(f"SELECT COALESCE(max({what}), 0) FROM outbox.{table}"))
                for what, table in (("number", "positions"), ("tick", "ticks"))]

    positions, ticks = counts()
    before = nginx.requests()
    start, cpu = cluster.lsn(), cpu_seconds(pid)
    begun = time.monotonic()
    cluster.emit(events, topic="bench.all")
    ended = nginx.wait_for(before + others * events, 600)
    cluster.settle(2)
    cpu = cpu_seconds(pid) - cpu
    wal = cluster.wal_bytes(start, cluster.lsn())
    least = int(cluster.sql.value(
        "SELECT min(delivered) FROM outbox.stats WHERE endpoint LIKE 'all\\_%'"))
    assert least == events, f"an endpoint got {least} of {events} events"
    after = counts()
    rows("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints")
    cluster.settle(1)
    count = others * events
    return {"cpu_us": cpu * 1e6 / count, "wal": wal / count, "per_s": count / (ended - begun),
            "positions": after[0] - positions, "ticks": after[1] - ticks}


def measure(bench):
    report = bench.report
    cluster = bench.cluster("footprint")
    events = bench.scale(1000000, 200000)
    others = 999
    grown = [memory(bench, cluster, events) for _ in range(bench.repetitions)]
    one, thousand = [], []
    for _ in range(bench.repetitions):
        one.append(many(bench, cluster, 0, 500, bench.scale(10, 4)))
        thousand.append(many(bench, cluster, others, 500, bench.scale(10, 4)))
    fanned = [everybody(bench, cluster, others + 1, bench.scale(50, 10))
              for _ in range(bench.repetitions)]
    cluster.check()
    cluster.stop()

    backlog = bench.scale(*BACKLOG)
    report.at_most(SECTION, f"memory of the worker above idle, {events:,} events in one"
                   " transaction", [g / MB for _, g in grown], "MB", 64,
                   idle_mb=[i / MB for i, _ in grown])
    for what, key, unit in [
            ("CPU of the worker per event at 500 events/s", "cpu_us", "µs"),
            ("WAL per event, the emit's included", "wal", "B"),
            (f"CPU of the worker per event, {backlog:,} waiting", "backlog_cpu_us", "µs"),
            (f"deliveries/s, {backlog:,} waiting", "backlog_per_s", "/s")]:
        report.add(SECTION, f"{what}: 1,000 endpoints of which one wants it, beside 1 endpoint",
                   f"{text(median(r[key] for r in thousand))} {unit} beside"
                   f" {text(median(r[key] for r in one))} {unit}",
                   thousand=[r[key] for r in thousand], one=[r[key] for r in one])
    report.add(SECTION, "1,000 endpoints that all want every event, per delivery",
               f"{text(median(r['cpu_us'] for r in fanned))} µs CPU,"
               f" {text(median(r['wal'] for r in fanned))} B of WAL,"
               f" {text(median(r['per_s'] for r in fanned))} deliveries/s;"
               f" {text(median(r['positions'] for r in fanned))} positions in"
               f" {text(median(r['ticks'] for r in fanned))} ticks", runs=fanned)
