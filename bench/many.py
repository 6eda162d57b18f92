"""Many endpoints, each on a host of its own and mostly of a tenant of its own, beside a
bare libcurl loop over the same hosts."""
import json
import os
import subprocess
import time

from drain import header_facts
from latency import Stamps, run_emitter
from machine import HERE, BenchError, Loopback, cpu_seconds, rss_anon, wait_until
from receivers import Nginx, Receiver
from report import median, text

SECTION = "Many endpoints"
LOOPS = (16, 32, 128)			# requests in flight of the bare loop: the best one counts
BATCH = 1000					# events in a transaction
AHEAD = 3 * BATCH				# so many events wait at most where they are delivered as they come
LEAST = {100: 0.9, 1000: 0.9, 10000: 3}	# the loop has one multi handle, which suits few hosts
PAYLOAD = '{"order": 1000000, "text": "' + "x" * 60 + '"}'


def loop(nginx, request, count, hosts, in_flight):
    process = subprocess.run(
        [str(a) for a in (HERE / "loop", "-r", request, "-n", count, "-c", in_flight,
                          "-H", hosts, f":{nginx.port}/")],
        stdout=subprocess.PIPE, text=True)
    if process.returncode != 0:
        raise BenchError("the libcurl loop failed: see its message above")
    return json.loads(process.stdout)


def best_loop(nginx, request, count, hosts):
    return max((loop(nginx, request, count, hosts, n) for n in LOOPS), key=lambda found: found["per_s"])


def capture(machine, cluster):
    receiver = Receiver(machine, dump=True)
    cluster.create_endpoint("capture", receiver.url())
    cluster.emit(1)
    cluster.wait_delivered("capture", 1)
    cluster.drop_endpoint("capture")
    receiver.stop()
    return receiver.dump


def create(cluster, receiver, first, last, wants="tenant => 't' || i"):
    """Endpoints 'first' to 'last', and the seconds that it took.  'wants' is SQL."""
    begun = time.monotonic()
    cluster.sql.rows(
        "SELECT count(outbox.create_endpoint('e' || i, 'http://127.1.' || i / 250 || '.'"
        f" || i % 250 + 1 || ':{receiver.port}/', {wants}))"
        f" FROM generate_series({first}, {last - 1}) AS i")
    return time.monotonic() - begun


def emit(cluster, count, number, by_topic=False, wait=lambda emitted: None):
    """'count' events in transactions of BATCH, each of a tenant or of a topic.  'number' is SQL.
    'wait' is called before each transaction."""
    event = (f"'t' || {number}, '{PAYLOAD}'" if by_topic else
             f"'bench.order', '{PAYLOAD}', tenant => 't' || {number}")
    for first in range(0, count, BATCH):
        wait(first)
        cluster.sql.rows(
            f"SELECT count(outbox.emit({event}))"
            f" FROM generate_series({first}, {min(first + BATCH, count) - 1}) AS i")


def live(cluster, nginx, count, endpoints, by_topic=False, ahead=None):
    """Deliveries per second while one session emits: as fast as it can, or as fast as events
    are delivered, with 'ahead' of them waiting at most."""
    pid = cluster.worker()
    before = nginx.requests()

    def wait(emitted):
        if ahead:
            wait_until(lambda: emitted + BATCH - (nginx.requests() - before) <= ahead, 60,
                       "the events to be delivered", every=0.002)

    cpu = cpu_seconds(pid)
    begun = time.monotonic()
    emit(cluster, count, f"floor(random() * {endpoints})", by_topic, wait)
    emitted = time.monotonic()
    ended = nginx.wait_for(before + count, 600)
    return {"per_s": count / (ended - begun), "emitted_per_s": count / (emitted - begun),
            "cpu_us": (cpu_seconds(pid) - cpu) * 1e6 / count}


def behind(cluster, nginx, each, endpoints, by_topic=False):
    """Deliveries per second to endpoints that were paused and are all behind, and their CPU."""
    cluster.sql.rows("SELECT count(outbox.pause_endpoint(name)) FROM outbox.endpoints")
    emit(cluster, endpoints * each, f"i % {endpoints}", by_topic)
    cluster.settle(2)
    count, settled, before = endpoints * each, delivered(cluster), nginx.requests()
    pid = cluster.worker()
    cpu = cpu_seconds(pid)
    cluster.sql.rows("SELECT count(outbox.resume_endpoint(name)) FROM outbox.endpoints")
    begun = time.monotonic()	# the worker saw nothing of it before the commit
    ended = nginx.wait_for(before + count, 600)
    wait_until(lambda: delivered(cluster) >= settled + count, 60, "the rest")
    return {"per_s": count / (ended - begun), "cpu_us": (cpu_seconds(pid) - cpu) * 1e6 / count}


def latencies(bench, endpoints):
    """p50 and p99 in ms from emit to the receiver, of 1,000 events/s."""
    cluster = bench.cluster(f"many-latency-{endpoints}")
    receiver = Receiver(bench.machine, record=True, everywhere=True)
    create(cluster, receiver, 0, endpoints)
    cluster.settle(2)
    before = delivered(cluster)
    cluster.sql.rows("SELECT count(outbox.emit('warm', '{\"n\": -1}', tenant => 't' || i))"
                     f" FROM generate_series(0, {endpoints - 1}) AS i")
    wait_until(lambda: delivered(cluster) >= before + endpoints, 120, "the first connections")
    cluster.settle(2)
    seconds = bench.scale(30, 10)
    statement = ("SELECT outbox.emit('bench.latency', $1::jsonb, tenant => 't' ||"
                 f" floor(random() * {endpoints}))")
    out = run_emitter(bench, cluster, 1000, seconds, statement)
    wait_until(lambda: delivered(cluster) >= before + endpoints + 1000 * seconds, 60, "the rest")
    cluster.check()
    cluster.stop()
    return Stamps(out, *receiver.arrivals()).percentiles(1)


def delivered(cluster):
    return int(cluster.sql.value("SELECT coalesce(sum(delivered), 0) FROM outbox.stats"))


def fan_out(bench, nginx, endpoints):
    """µs of the worker's CPU for a delivery: of one event to all endpoints, and of as many
    events to one of them."""
    cluster = bench.cluster(f"many-fan-out-{endpoints}")
    create(cluster, nginx, 0, endpoints, wants="topics => '{all}'")
    cluster.create_endpoint("one", f"http://127.1.0.1:{nginx.port}/", ", topics => '{one}'")
    cluster.settle(2)

    def cost(topic, events, deliveries):
        before, cpu = nginx.requests(), cluster.worker_cpu()
        for _ in range(events):
            cluster.emit(1 if topic == "all" else deliveries, topic=topic)
            before += deliveries
            nginx.wait_for(before, 120)
        cluster.settle(3)		# all that the worker does afterwards belongs to it
        return (cluster.worker_cpu() - cpu) * 1e6 / (events * deliveries)

    cost("all", 1, endpoints)	# the first connections
    cost("one", 1, endpoints)
    found = cost("all", 5, endpoints), cost("one", 5, endpoints)
    cluster.check()
    cluster.stop()
    return found


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
        live(cluster, nginx, size, size)
        loops, runs, fast, late = [], [], [], []
        each = max(10, 10000 // size)	# fewer than 10,000 take no time to speak of
        for _ in range(bench.repetitions):
            loops.append(best_loop(nginx, request, count, size))
            runs.append(live(cluster, nginx, count, size, ahead=AHEAD))
            fast.append(live(cluster, nginx, count, size))
            late.append(behind(cluster, nginx, each, size))
        report.ratio(SECTION, f"{size:,} endpoints: deliveries/s of events as they come ÷ requests/s of a bare"
                     " libcurl loop at its best", [r["per_s"] for r in runs], [r["per_s"] for r in loops],
                     at_least=LEAST.get(size), runs=runs, loops=loops)
        report.ratio(SECTION, f"{size:,} endpoints: the same while they are emitted faster than they can be delivered",
                     [r["per_s"] for r in fast], [r["per_s"] for r in loops], runs=fast)
        report.add(SECTION, f"{size:,} endpoints: CPU per delivery, worker beside loop",
                   f"{median(r['cpu_us'] for r in runs):.1f} µs, {median(r['cpu_us'] for r in loops):.1f} µs")
        for words, sql, limit in QUESTIONS:
            took = ask(cluster, sql)
            report.add(SECTION, f"{size:,} endpoints: {words}", f"{took:.2f} ms", f"≤ {limit} ms", took <= limit)
        report.ratio(SECTION, f"{size:,} endpoints that are all behind by {each} events: deliveries/s ÷ those of"
                     " events that are emitted faster than they can be delivered", [r["per_s"] for r in late], [r["per_s"] for r in fast], at_least=0.8)
    cluster.check()
    cluster.stop()
    for size in sizes:
        for name, value, limit in zip(("p50", "p99"), latencies(bench, size), (1, 10)):
            report.add(SECTION, f"{size:,} endpoints, 1,000 events/s, emit → receiver, {name}",
                       f"{text(value)} ms", f"≤ {limit} ms", value <= limit)
        many, one = fan_out(bench, nginx, size)
        report.add(SECTION, f"one event to {size:,} endpoints: CPU per delivery, ÷ events to one endpoint",
                   f"{many:.1f} µs ÷ {one:.1f} µs = {many / one:.2f}", "≤ 1.5", many <= 1.5 * one)
    bench.machine.stop(nginx.process)
