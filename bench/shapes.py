"""One table over shapes: tenants or none, events as they come, all behind or half behind, few and
many endpoints, receivers that are well, slow or down.  It ends in MINUTES: cells that do not fit are left out."""
import os
import time

from machine import HERE, BenchError, free_port, wait_until
from receivers import Nginx
from report import text

SECTION = "Shapes"
SLOTS = 1024			# outbox.worker_max_in_flight
SHARE = 32				# max_in_flight of an endpoint
SMALL = 100				# more endpoints than that have receivers that are slower
MANY = 10				# events of each of many endpoints: what a change of settings takes is the same for one
SECONDS = 5				# for which a cell with receivers that are slow or down is measured
MINUTES = 30
CELL = 120				# seconds that one wait of a cell may take
STATES = ("live", "behind", "half behind")


class Receivers:
    """One port: with nginx, with a receiver that answers late, or with nothing."""

    def __init__(self, machine):
        self.machine = machine
        nginx = Nginx(machine, tls=True)	# a directory of its own
        self.port, self.process, self.dir = nginx.port, nginx.process, nginx.certificate.parent

    def down(self):
        if self.process:
            self.machine.stop(self.process)
        self.process = None

    def well(self):
        self.down()
        self.process = self.machine.start("nginx", "-p", self.dir, "-c", self.dir / "nginx.conf", log=self.dir / "out")

    def slow(self, seconds):
        self.down()
        journal = self.machine.dir / f"journal-{free_port()}"
        self.process = self.machine.start(HERE / "slow.py", self.port, journal, seconds, log=f"{journal}.log")
        wait_until(journal.exists, 10, "the slow receiver")


class Shape:
    """Endpoints of one cluster, each with a topic of its own."""

    def __init__(self, bench, cluster, size, tenants):
        self.sql, self.cluster, self.size = cluster.sql, cluster, size
        self.tenant = f", tenant => 't' || i % {size}" if tenants else ""
        self.words = f"{size:,} endpoint{'s' if size > 1 else ''}, {'a tenant each' if tenants else 'no tenants'}"
        self.slots = max(min(size * SHARE, SLOTS), size)	# each has one, and all have these
        self.many = bench.scale(max(30000, MANY * size), max(2000, size))
        self.rows = f"{size:,}", "each its own" if tenants else "none"

    def each(self, call, where="true"):
        self.sql.rows(f"SELECT count(outbox.{call}) FROM outbox.endpoints WHERE name <> 'healthy' AND {where}")

    def delivered(self):
        return int(self.sql.value("SELECT sum(delivered) FROM outbox.workers"))

    def begin(self, state, events):
        """Events for all.  Endpoints that are behind may read from now on.  Returns since when, and how
        many were delivered before."""
        where = "true" if state == "behind" else "right(name, 1) < '5'"
        before, begun = self.delivered(), time.monotonic()
        if state != "live":
            self.each("pause_endpoint(name)", where)
        for first in range(0, events, 1000):
            self.sql.rows(f"SELECT count(outbox.emit('e' || i % {self.size}, '{{}}'{self.tenant}))"
                          f" FROM generate_series({first}, {min(first + 1000, events) - 1}) i")
        if state != "live":
            self.cluster.settle(1)
            before = self.delivered()
            self.each("resume_endpoint(name)", where)
            begun = time.monotonic()	# the statement took 0.3 ms for each, and none could read before
        return begun, before

    def all_delivered(self):
        wait_until(lambda: self.sql.value("SELECT sum(pending + processing + retrying + blocked) = 0"
                                          " FROM outbox.stats") == "t", CELL, "all to be delivered", every=0.2)

    def well(self, state):
        """Deliveries/s."""
        total = self.delivered() + self.many
        begun, before = self.begin(state, self.many)
        wait_until(lambda: self.delivered() >= total, CELL, "all to be delivered", every=0.01)
        return (total - before) / (time.monotonic() - begun)

    def slow(self, state, seconds):
        """Requests/s, ÷ what the slots allow: one each, and 1,024 or 32 each where that is more.  All
        are answered in the end, because a request that is cut off would open the breaker."""
        measured = max(SECONDS, 2 * seconds)
        self.begin(state, self.slots * (measured // seconds + 2))
        time.sleep(seconds)
        before, begun = self.delivered(), time.monotonic()
        time.sleep(measured)
        rate = (self.delivered() - before) / (time.monotonic() - begun)
        self.all_delivered()
        return rate, rate * seconds / self.slots

    def empty(self):
        """After a cell that failed: nothing waits."""
        self.each("seek_endpoint(name, 'now')")
        self.each("discard(name)")
        self.each("resume_endpoint(name)")
        self.all_delivered()

    def down(self, state):
        """Seconds until a healthy endpoint has 100 events, and the part of a core that the worker takes."""
        self.begin(state, self.many)
        time.sleep(1)
        cpu, begun = self.cluster.worker_cpu(), time.monotonic()
        had = int(self.sql.value("SELECT delivered FROM outbox.stats WHERE endpoint = 'healthy'"))
        self.cluster.emit(100, topic="healthy")
        self.cluster.wait_delivered("healthy", had + 100)
        took = time.monotonic() - begun
        time.sleep(SECONDS)
        return took, (self.cluster.worker_cpu() - cpu) / (time.monotonic() - begun)


class Table:
    """The figures of all cells: rows of the report, and one table for doc/performance.md."""

    def __init__(self, report):
        self.report, self.cells, self.until = report, {}, time.monotonic() + 60 * MINUTES

    def cell(self, shape, receivers, state, measured):
        """'measured' returns a figure in words, what is wanted, and whether it is met."""
        row = shape.rows + (receivers,)
        words, more = "no time was left", ()
        try:
            if time.monotonic() < self.until:
                words, *more = measured()
        except BenchError as error:
            words, more = f"could not be measured: {error}", ("", False)
            shape.empty()
        self.cells.setdefault(row, {})[state] = words
        self.report.add(SECTION, f"{receivers}, {state}, {shape.words}", words, *more)

    def print(self):
        print("| endpoints | tenants | receivers | " + " | ".join(STATES) + " |\n|---|---|---|" + "---|" * len(STATES))
        for row, cells in self.cells.items():
            print("| " + " | ".join([*row, *(cells.get(state, "") for state in STATES)]) + " |", flush=True)


def measure_well(table, shape):
    live = []

    def measured(state):
        rate = shape.well(state)
        if not live:
            live.append(rate)
            return (f"{text(rate)}/s",)
        return f"{text(rate)}/s, {rate / live[0]:.2f}", "≥ 0.8 of live", rate >= 0.8 * live[0]

    for state in STATES:
        table.cell(shape, "well: deliveries, of live", state, lambda: measured(state))


def measure_ill(table, shape, receivers):
    seconds = 1 if shape.size <= SMALL else 10

    def slow(state):
        rate, part = shape.slow(state, seconds)
        return (f"{text(rate)}/s, {part:.2f}",)

    def down(state):
        try:
            receivers.down()
            took, cpu = shape.down(state)
        finally:
            receivers.well()
        shape.each("resume_endpoint(name)")
        shape.all_delivered()
        return (f"{text(took)} s, {cpu:.0%}",)

    receivers.slow(seconds)
    for state in STATES:
        table.cell(shape, f"slow ({seconds} s): requests, of what the slots allow", state, lambda: slow(state))
    for state in STATES:
        table.cell(shape, "down: 100 events of a healthy one, CPU", state, lambda: down(state))


def measure(bench):
    sizes = [int(n) for n in os.environ.get("SHAPES", "").split()] or bench.scale([1, 100, 10000, 30000], [1, 100])
    receivers = Receivers(bench.machine)
    table = Table(bench.report)
    for tenants in (False, True):
        cluster = bench.cluster(f"shapes-{tenants}")
        cluster.create_endpoint("healthy", bench.nginx.url(), ", '{healthy}'")
        made = 0
        for size in sizes:
            shape = Shape(bench, cluster, size, tenants)
            cluster.sql.rows(f"SELECT count(outbox.create_endpoint('e' || i, 'http://127.0.0.1:{receivers.port}/', ARRAY['e' || i]"
                             f"{shape.tenant})) FROM generate_series({made}, {size - 1}) i")
            made = size
            cluster.settle(2)
            measure_well(table, shape)
            if size <= 10000:
                measure_ill(table, shape, receivers)
        cluster.check()
        cluster.stop()
    receivers.down()
    table.print()
