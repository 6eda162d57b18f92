"""Many endpoints that change all the time, that have nothing to do, or that are on hosts of
their own with TLS."""
import os
import time

from latency import Stamps, run_emitter
from machine import HERE, BenchError, cpu_seconds, rss_anon
from receivers import Nginx, Receiver
from report import median, text

SECTION = "Endpoints that change and that are idle"
CHANGES = 1000					# a second
PROBES = 100					# endpoints that show when the worker has a change
RATE = 20						# probes a second: each of them is changed once in five seconds

# Alternately of three kinds, of endpoints at random
CHANGE = ("SELECT CASE (n % 3) WHEN 0 THEN outbox.alter_endpoint(name, max_in_flight => 1 + n % 64)"
          " WHEN 1 THEN outbox.pause_endpoint(name) ELSE outbox.resume_endpoint(name) END"
          " FROM (SELECT ($1::jsonb->>'n')::int AS n, 'e' || floor(random() * {endpoints}) AS name) AS c")

# The event reaches the endpoint only once the worker has its new topic.
PROBE = ("WITH c AS MATERIALIZED (SELECT outbox.alter_endpoint('p' || ($1::jsonb->>'n')::int % {probes},"
         " topics => ARRAY['probe.n' || ($1::jsonb->>'n')]))"
         " SELECT outbox.emit('probe.n' || ($1::jsonb->>'n'), $1::jsonb) FROM c")

STATEMENTS = [
    ("create_endpoint()", "SELECT outbox.create_endpoint('x{i}', 'http://x{i}.example/', topics => '{{none}}')"),
    ("alter_endpoint()", "SELECT outbox.alter_endpoint('x{i}', max_in_flight => 8)"),
    ("pause_endpoint()", "SELECT outbox.pause_endpoint('x{i}')"),
    ("drop_endpoint()", "SELECT outbox.drop_endpoint('x{i}')"),
]


def create(cluster, count):
    """So many endpoints, each on a host of its own, that get nothing."""
    for first in range(0, count, 10000):
        cluster.sql.rows("SELECT count(outbox.create_endpoint('e' || i, 'http://e' || i || '.example/',"
                         f" topics => '{{none}}')) FROM generate_series({first}, {min(first + 10000, count) - 1}) AS i")


def statements(cluster):
    """Milliseconds of each, the median of many, as the session waits for them."""
    found = []
    for _, sql in STATEMENTS:
        times = []
        for i in range(25):
            begun = time.monotonic()
            cluster.sql.rows(sql.format(i=i))
            times.append((time.monotonic() - begun) * 1000)
        found.append(median(times))
    return found


def probe(bench, cluster, seconds, endpoints=None):
    """p50 and p99 in ms from the change of an endpoint to the delivery that needs it; with 'endpoints' while
    so many of them are changed at random."""
    receiver = Receiver(bench.machine, record=True)
    for i in range(PROBES):
        cluster.create_endpoint(f"p{i}", receiver.url(), ", topics => '{none}'")
    cluster.settle(2)
    changes = None
    out = bench.machine.dir / "changed"

    def start():
        nonlocal changes
        if endpoints:
            changes = bench.machine.start(
                HERE / "emitter", "-d", cluster.conninfo(), "-q", CHANGE.format(endpoints=endpoints),
                "-o", out, "-r", CHANGES, "-s", seconds, log=bench.machine.dir / "changes.log")

    stamps = run_emitter(bench, cluster, RATE, seconds, PROBE.format(probes=PROBES), start)
    if changes and changes.wait(120) != 0:
        raise BenchError((bench.machine.dir / "changes.log").read_text())
    cluster.settle(2)
    for i in range(PROBES):
        cluster.drop_endpoint(f"p{i}")
    rate = None
    if changes:
        lines = [line.split() for line in out.read_text().splitlines()]
        rate = (len(lines) - 1) * 1e9 / (max(int(w[2]) for w in lines) - min(int(w[1]) for w in lines))
    return Stamps(stamps, *receiver.arrivals()).percentiles(1), rate


def changing(bench):
    report = bench.report
    few, many = 10, bench.scale(10000, 1000)
    seconds = bench.scale(20, 5)
    cluster = bench.cluster("changes")
    create(cluster, few)
    among_few = statements(cluster)
    cluster.sql.rows("SELECT count(outbox.drop_endpoint(name)) FROM outbox.endpoints")
    create(cluster, many)
    cluster.settle(2)
    alone, _ = probe(bench, cluster, seconds)
    pid = cluster.worker()
    cpu, begun = cpu_seconds(pid), time.monotonic()
    values, rate = probe(bench, cluster, seconds, many)
    cpu = (cpu_seconds(pid) - cpu) / (time.monotonic() - begun)
    for name, value, before in zip(("p50", "p99"), values, alone):
        report.add(SECTION, f"{rate:,.0f} changes/s among {many:,} endpoints: a change and its first delivery, {name}",
                   f"**{text(value)} ms**, {text(before)} ms without other changes", "≤ 50 ms", value <= 50)
    report.add(SECTION, "CPU of the worker meanwhile", f"{cpu:.0%} of a core")
    among_many = statements(cluster)
    for (words, _), a, b in zip(STATEMENTS, among_few, among_many):
        report.add(SECTION, f"{words}, among {few} and among {many:,} endpoints", f"{a:.2f} ms, {b:.2f} ms",
                   "≤ 5 ms", max(a, b) <= 5)
    cluster.check()
    cluster.stop()


def idle(bench):
    report = bench.report
    count = int(os.environ.get("IDLE", 0)) or bench.scale(100000, 2000)
    seconds = bench.scale(20, 5)
    cluster = bench.cluster("idle")
    cluster.create_endpoint("one", bench.nginx.url(), ", topics => '{one}'")
    before = rss_anon(cluster.worker())
    begun = time.monotonic()
    create(cluster, count)
    report.add(SECTION, f"create_endpoint() of {count:,}", f"{time.monotonic() - begun:.1f} s")

    def end_worker():
        cluster.sql.rows(f"SELECT pg_terminate_backend({cluster.worker()})")

    served = bench.nginx.requests()
    cluster.emit(1, topic="one")
    bench.nginx.wait_for(served + 1, 60)
    cluster.settle(bench.scale(70, 5))	# what was made for a change is given back after a minute
    memory = rss_anon(cluster.worker())
    report.add(SECTION, f"{count:,} idle endpoints: memory of the worker",
               f"{memory / 2**20:.0f} MB, {(memory - before) / count:.0f} B for each", "≤ 128 MB", memory <= 128 * 2**20,
               counted=True)
    cpu = cluster.worker_cpu()
    time.sleep(seconds)
    cpu = (cluster.worker_cpu() - cpu) / seconds
    report.add(SECTION, f"{count:,} idle endpoints: CPU of the worker", f"{cpu:.2%} of a core", "< 1 %", cpu < 0.01)
    for what, restart in (("the worker", end_worker), ("the server", cluster.restart)):
        served = bench.nginx.requests()
        begun = time.monotonic()
        restart()
        cluster.emit(1, topic="one")
        took = bench.nginx.wait_for(served + 1, 60) - begun
        report.add(SECTION, f"{count:,} idle endpoints: from the restart of {what} to a delivery", f"{took:.2f} s",
                   "≤ 3 s", took <= 3)
        cluster.settle(2)
    cluster.stop()


def hosts(bench):
    """CPU of the worker for one event to each of many hosts, whose connection is new, and for the next one."""
    report = bench.report
    count = bench.scale(1000, 100)
    nginx = Nginx(bench.machine, tls=True)
    cluster = bench.cluster("hosts", more=f"outbox.ssl_ca_file = '{nginx.certificate}'\n")
    cluster.sql.rows("SELECT count(outbox.create_endpoint('e' || i, 'https://e' || i || '.w.localhost:"
                     f"{nginx.tls}/', topics => '{{all}}')) FROM generate_series(1, {count}) AS i")
    cluster.settle(2)
    found = []
    for _ in range(4):
        served, cpu = nginx.requests(), cluster.worker_cpu()
        begun = time.monotonic()
        cluster.emit(1, topic="all")
        took = nginx.wait_for(served + count, 120) - begun
        cluster.settle(2)
        found.append(((cluster.worker_cpu() - cpu) * 1e6 / count, took))
    report.add(SECTION, f"{count:,} hosts with TLS, one event each: CPU per first delivery",
               f"{text(found[0][0])} µs, all in {found[0][1]:.2f} s")
    report.add(SECTION, f"{count:,} hosts with TLS, one event each: CPU per later delivery",
               f"{text(median(f[0] for f in found[1:]))} µs, all in {median(f[1] for f in found[1:]):.2f} s")
    cluster.check()
    cluster.stop()
    bench.machine.stop(nginx.process)


PARTS = {"changing": changing, "idle": idle, "hosts": hosts}


def measure(bench):
    for name in os.environ.get("CHANGES", "").split() or PARTS:
        PARTS[name](bench)
