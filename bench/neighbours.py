"""What healthy endpoints notice of a receiver that hangs, of a name that never resolves,
and of many slow receivers."""
import os
import socket
import threading
import time

from cluster import of_tenant
from machine import HERE, free_port, wait_until
from receivers import Receiver
from slow import FAST, SLOW

SECTION = "Bad neighbours"
HEALTHY = 8
SLOTS = 1024			# outbox.worker_max_in_flight
RESOLVER = "127.83.83.83"		# ours alone on the loopback network


class SilentResolver:
    """A name server that swallows every question."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((RESOLVER, 53))
        self.questions = 0
        threading.Thread(target=self.swallow, daemon=True).start()

    def swallow(self):
        while True:
            try:
                self.socket.recv(4096)
            except OSError:
                return
            self.questions += 1

    def close(self):
        self.socket.close()


def one_run(bench, cluster, count, bad):
    """Deliveries per second to the healthy endpoints, from resume to the last."""
    nginx = bench.nginx
    names = [f"healthy_{i}" for i in range(HEALTHY)]
    for name in names:
        cluster.create_endpoint(name, nginx.url())
    for name, url in bad.items():
        cluster.create_endpoint(name, url)
    for name in [*names, *bad]:
        cluster.pause(name)
    cluster.emit(count)
    cluster.settle()
    for name in bad:
        cluster.resume(name)
    # Its requests hang by now, and no timeout is over.
    cluster.settle(1)
    before = nginx.requests()
    begun = time.monotonic()
    cluster.sql.rows("SELECT outbox.resume_endpoint(n) FROM unnest("
                     f"'{{{','.join(names)}}}'::text[]) AS n")
    ended = nginx.wait_for(before + count * HEALTHY, 600)
    if bad:
        reasons = dict(cluster.sql.rows(
            "SELECT endpoint, processing || ' in flight, ' || retrying || ' retrying, '"
            " || delivered || ' delivered' FROM outbox.stats"
            " WHERE endpoint NOT LIKE 'healthy%'"))
    else:
        reasons = {}
    for name in [*names, *bad]:
        cluster.drop_endpoint(name)
    return count * HEALTHY / (ended - begun), reasons


def beside_slow(bench, count, tenants, files, fasts=1):
    """Requests/s of a fast endpoint beside slow ones that always have something to send, and
    its longest wait between two.  'tenants': one has the slow ones, and another the fast one.
    'files': descriptors that a process may have.  'fasts': as many fast ones; the requests of one
    of them, on average."""
    port = free_port()
    journal = bench.machine.dir / f"journal-{port}"
    receiver = bench.machine.start(HERE / "slow.py", port, journal, log=f"{journal}.log")
    wait_until(journal.exists, 10, "the slow receiver")
    cluster = bench.cluster(f"slow-{port}", files=files)
    slow, fast = ("slow", "fast") if tenants else (None, None)
    cluster.sql.rows(f"SELECT count(outbox.create_endpoint('slow-' || n, 'http://127.0.0.1:{port}/'"
                     f" || n, '{{slow}}', timeout => '1 min'{of_tenant(slow)})) FROM generate_series(1, {count}) n")
    for n in range(fasts):
        cluster.create_endpoint(f"fast-{n}", f"http://127.0.0.1:{port}/fast", f", '{{fast}}'{of_tenant(fast)}")
    cluster.emit(1000, topic="slow", tenant=slow)
    cluster.settle(2)
    # All slow ones answer at once at first, and a slot becomes free when one answers.
    enough = min(files - 256, SLOTS) if files else SLOTS + count
    turn = SLOW * max((count + 1) / enough, 1)
    cluster.emit(int((7 * turn + 3 * SLOW) * 32 / FAST), topic="fast", tenant=fast)
    cluster.settle(max(3 * SLOW, turn))
    begun = time.time()
    time.sleep(bench.scale(4, 2) * turn)
    ended = time.time()
    times = [float(line) for line in journal.read_text().splitlines() if begun <= float(line) <= ended]
    reason = cluster.sql.value("SELECT reason FROM outbox.stats WHERE endpoint = 'fast-0'")
    cluster.check()
    cluster.stop()
    bench.machine.stop(receiver)
    edges = [begun, *times, ended]
    return len(times) / fasts / (ended - begun), max(b - a for a, b in zip(edges, edges[1:])), reason


def fair_slots(count, tenants, files):
    """The slots of the fast endpoint, if each tenant, and in it each endpoint, has an equal part."""
    enough = min(files, SLOTS) if files else SLOTS
    part = enough / 2 if tenants else enough / (count + 1)
    # One of its own is beyond the slots that are shared, while descriptors allow it.
    return min(part if files else max(part, 1), 32)


def measure_slow(bench):
    for files in (None, 1024):
        for tenants in (False, True):
            for count in map(int, os.environ.get("SLOW", "10 40 400 4000").split()):
                # 256 descriptors are left to all that is no request (slots.c).
                fair = fair_slots(count, tenants, files and files - 256) / FAST
                rate, gap, reason = beside_slow(bench, count, tenants, files)
                what = ", of another tenant" if tenants else ""
                limit = f", ulimit -n {files}" if files else ""
                bench.report.add(SECTION, f"a fast endpoint (0.1 s) beside {count:,} slow ones (14 s){what}{limit}:"
                                 " requests/s, and the longest time between two",
                                 f"{rate:.1f}/s, {gap:.2f} s", f"{0.9 * fair:.1f}/s", rate >= 0.9 * fair,
                                 reason=reason)
    many, fasts = 4000, 16
    rate, _, reason = beside_slow(bench, many, False, None, fasts)
    fair = fair_slots(many, False, None) / FAST
    bench.report.add(SECTION, f"each of {fasts} fast endpoints beside {many:,} slow ones: requests/s",
                     f"{rate:.1f}/s", f"{0.9 * fair:.1f}/s", rate >= 0.9 * fair, reason=reason)


def measure(bench):
    measure_slow(bench)
    report = bench.report
    count = bench.scale(60000, 10000)
    bad_urls = {}
    resolver = None
    silent = Receiver(bench.machine, silent=True)
    bad_urls["hangs"] = silent.url()
    if os.geteuid() == 0:
        resolver = SilentResolver()
        bad_urls["unresolved"] = "http://never-answers.example.test/"
    cluster = bench.cluster("neighbours", resolver=RESOLVER if resolver else None)
    alone, beside, states = [], [], []
    for _ in range(bench.repetitions):
        alone.append(one_run(bench, cluster, count, {})[0])
        rate, state = one_run(bench, cluster, count, bad_urls)
        beside.append(rate)
        states.append(state)
    cluster.check()
    cluster.stop()
    silent.stop()
    bad = "one hangs until its timeout"
    questions = None
    if resolver:
        bad += ", one has a name whose server never answers"
        questions = resolver.questions
        resolver.close()
        if not questions:
            raise AssertionError("nobody asked the silent name server")
    else:
        bad += " (the name server needs root, left out)"
    report.ratio(SECTION, f"{HEALTHY} healthy endpoints, {count:,} events: deliveries/s with"
                 f" two bad ones ({bad}) ÷ without", beside, alone, at_least=0.95,
                 states=states, questions=questions)
