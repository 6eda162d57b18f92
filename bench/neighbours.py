"""What healthy endpoints notice of a receiver that hangs and of a name that
never resolves."""
import os
import socket
import threading
import time

from receivers import Receiver

SECTION = "Bad neighbours"
HEALTHY = 8
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


def measure(bench):
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
