"""Many endpoints, each of a tenant of its own and on a host of its own, beside a
bare libcurl loop over the same hosts."""
import json
import os
import subprocess
import time

from drain import header_facts
from machine import HERE, BenchError, Loopback, cpu_seconds, rss_anon
from receivers import Nginx, Receiver

SECTION = "Many endpoints"
LOOPS = (32, 128, 1024)			# requests in flight of the bare loop: the best one counts
BATCH = 1000					# events in a transaction
PAYLOAD = '{"order": 1000000, "text": "' + "x" * 60 + '"}'


def loop(nginx, request, count, hosts, in_flight):
    process = subprocess.run(
        [str(a) for a in (HERE / "loop", "-r", request, "-n", count, "-c", in_flight,
                          "-H", hosts, f":{nginx.port}/")],
        stdout=subprocess.PIPE, text=True)
    if process.returncode != 0:
        raise BenchError("the libcurl loop failed: see its message above")
    return json.loads(process.stdout)


def capture(machine, cluster):
    receiver = Receiver(machine, dump=True)
    cluster.create_endpoint("capture", receiver.url())
    cluster.emit(1)
    cluster.wait_delivered("capture", 1)
    cluster.drop_endpoint("capture")
    receiver.stop()
    return receiver.dump


def create(cluster, nginx, first, last):
    """Endpoints 'first' to 'last', and the seconds that it took."""
    begun = time.monotonic()
    cluster.sql.rows(
        "SELECT count(outbox.create_endpoint('e' || i, 'http://127.1.' || i / 250 || '.'"
        f" || i % 250 + 1 || ':{nginx.port}/', tenant => 't' || i))"
        f" FROM generate_series({first}, {last - 1}) AS i")
    return time.monotonic() - begun


def emit(cluster, count, tenant):
    """'count' events in transactions of BATCH.  'tenant' is SQL."""
    for first in range(0, count, BATCH):
        cluster.sql.rows(
            f"SELECT count(outbox.emit('bench.order', '{PAYLOAD}', tenant => 't' || {tenant}))"
            f" FROM generate_series({first}, {min(first + BATCH, count) - 1}) AS i")


def live(cluster, nginx, count, endpoints):
    """Deliveries per second while one session emits as fast as it can."""
    pid = cluster.worker()
    before = nginx.requests()
    cpu = cpu_seconds(pid)
    begun = time.monotonic()
    emit(cluster, count, f"floor(random() * {endpoints})")
    emitted = time.monotonic()
    ended = nginx.wait_for(before + count, 600)
    return {"per_s": count / (ended - begun), "emitted_per_s": count / (emitted - begun),
            "cpu_us": (cpu_seconds(pid) - cpu) * 1e6 / count}


def behind(cluster, nginx, each, endpoints):
    """Deliveries per second to endpoints that were paused and are all behind."""
    cluster.sql.rows("SELECT count(outbox.pause_endpoint(name)) FROM outbox.endpoints")
    emit(cluster, endpoints * each, f"i % {endpoints}")
    cluster.settle(2)
    before = nginx.requests()
    begun = time.monotonic()
    cluster.sql.rows("SELECT count(outbox.resume_endpoint(name)) FROM outbox.endpoints")
    ended = nginx.wait_for(before + endpoints * each, 600)
    return endpoints * each / (ended - begun)


# What an operator or a portal asks among all these endpoints: words, SQL, at most so many ms
QUESTIONS = [
    ("outbox.stats of one endpoint", "SELECT * FROM outbox.stats WHERE endpoint = 'e5'", 5),
    ("the whole of outbox.stats", "SELECT count(*), sum(delivered) FROM outbox.stats", 500),
    ("deliveries_page() of a tenant", "SELECT * FROM outbox.deliveries_page(tenant => 't5')", 5),
    ("deliveries_page() of an endpoint", "SELECT * FROM outbox.deliveries_page('e5')", 5),
    ("attempts_page() of a tenant", "SELECT * FROM outbox.attempts_page(tenant => 't5')", 5),
    ("alter_endpoint()", "SELECT outbox.alter_endpoint('e5', max_in_flight => 8)", 5),
    ("pause_endpoint()", "SELECT outbox.pause_endpoint('e5')", 5),
    ("resume_endpoint()", "SELECT outbox.resume_endpoint('e5')", 5),
]


def ask(cluster, sql):
    """Milliseconds, of the fastest of several times: the rest is the machine's."""
    times = []
    for _ in range(9):
        begun = time.monotonic()
        cluster.sql.rows(sql)
        times.append((time.monotonic() - begun) * 1000)
    return min(times)


def measure(bench):
    if os.geteuid() != 0:
        bench.report.add(SECTION, "left out", "needs root, for a network of its own")
        return
    with Loopback():
        inside(bench)


def inside(bench):
    report = bench.report
    nginx = Nginx(bench.machine, everywhere=True)
    sizes = [int(n) for n in os.environ.get("MANY", "").split()] or \
        bench.scale([100, 1000, 10000], [100, 1000])
    cluster = bench.cluster("many")
    request = capture(bench.machine, cluster)
    lines, head, body = header_facts(request)
    report.add(SECTION, "the request", f"{lines} header lines, {head} B + {body} B of body")
    made = 0
    for size in sizes:
        count = bench.scale(100000, 30000)
        before = rss_anon(cluster.worker())
        seconds = create(cluster, nginx, made, size)
        report.add(SECTION, f"create_endpoint() of {size - made:,} more", f"{seconds:.1f} s")
        made = size
        cluster.settle(2)
        report.add(SECTION, f"memory of the worker, {size:,} endpoints",
                   f"{rss_anon(cluster.worker()) >> 10} kB, {before >> 10} kB before")
        loops = {n: loop(nginx, request, count, size, n) for n in LOOPS}
        live(cluster, nginx, size, size)
        runs = [live(cluster, nginx, count, size) for _ in range(bench.repetitions)]
        report.ratio(SECTION, f"{size:,} endpoints: deliveries/s ÷ requests/s of a bare"
                     " libcurl loop at its best", [r["per_s"] for r in runs],
                     [max(r["per_s"] for r in loops.values())], runs=runs, loops=loops)
        report.add(SECTION, f"{size:,} endpoints: CPU per delivery, worker beside loop",
                   f"{runs[0]['cpu_us']:.1f} µs, {min(r['cpu_us'] for r in loops.values()):.1f} µs")
        for words, sql, limit in QUESTIONS:
            took = ask(cluster, sql)
            report.add(SECTION, f"{size:,} endpoints: {words}", f"{took:.2f} ms", f"≤ {limit} ms", took <= limit)
        late = behind(cluster, nginx, 10, size)
        report.add(SECTION, f"{size:,} endpoints that are all behind: deliveries/s", f"{late:.0f}")
    cluster.check()
    cluster.stop()
    bench.machine.stop(nginx.process)
