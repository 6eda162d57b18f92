"""From just before emit to the receiver, at a fixed rate of events."""
from machine import HERE, BenchError, free_port
from receivers import Receiver
from report import median, percentile, text

SECTION = "Latency"
PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9)
EMIT = "SELECT outbox.emit('bench.latency', $1::jsonb)"


class Stamps:
    """What the emitter and the receiver noted, joined by number."""

    def __init__(self, path, arrivals, again):
        self.events = []		# (sent, to receiver, to commit, after commit), ms
        self.again = again
        self.late = []
        lost = 0
        for line in path.read_text().splitlines():
            number, sent, committed, late = map(int, line.split())
            self.late.append(late / 1e6)
            if number not in arrivals:
                lost += 1
                continue
            at = arrivals[number]
            self.events.append((sent / 1e9, (at - sent) / 1e6, (committed - sent) / 1e6,
                                (at - committed) / 1e6))
        if lost:
            raise BenchError(f"{lost} events did not reach the receiver")
        self.events.sort()

    def percentiles(self, column, first=None, last=None, percents=(50, 99)):
        """p50 and p99 in ms, of a span in seconds from the first event."""
        begun = self.events[0][0]
        values = sorted(e[column] for e in self.events
                        if (first is None or e[0] - begun >= first)
                        and (last is None or e[0] - begun < last))
        return [percentile(values, p) for p in percents]


def run_emitter(bench, cluster, rate, seconds, statement, while_running=None):
    """Emits at a rate; the file with its stamps."""
    out = bench.machine.dir / f"emitted-{free_port()}"
    emitter = bench.machine.start(
        HERE / "emitter", "-d", cluster.conninfo(), "-q", statement, "-o", out,
        "-r", rate, "-s", seconds, log=bench.machine.dir / "emitter.log")
    if while_running:
        while_running()
    if emitter.wait(seconds + 60) != 0:
        raise BenchError((bench.machine.dir / "emitter.log").read_text())
    return out


def emit_at(bench, cluster, rate, seconds, while_running=None, statement=EMIT, more=""):
    """Emits at a rate to an endpoint of its own; the stamps of all events."""
    receiver = Receiver(bench.machine, record=True)
    cluster.create_endpoint("latency", receiver.url(), ", topics => '{bench.latency}'" + more)
    cluster.settle(0.5)
    out = run_emitter(bench, cluster, rate, seconds, statement, while_running)
    cluster.wait_delivered("latency", int(rate * seconds))
    cluster.drop_endpoint("latency")
    arrivals, again = receiver.arrivals()
    return Stamps(out, arrivals, again)


def measure(bench):
    report = bench.report
    cluster = bench.cluster("latency")
    seconds = bench.scale(30, 5)
    emit_at(bench, cluster, 100, 2)		# the first connections, caches
    runs = {100: [], 1000: []}
    for _ in range(bench.repetitions):
        for rate in runs:
            runs[rate].append(emit_at(bench, cluster, rate, seconds))
    cluster.check()
    cluster.stop()

    report.figures["latency"] = {
        str(rate): [[p, median(values)] for p, values in zip(
            PERCENTS, zip(*(s.percentiles(1, percents=PERCENTS) for s in stamps)))]
        for rate, stamps in runs.items()}
    for rate, stamps in runs.items():
        received = [s.percentiles(1) for s in stamps]
        committed = [s.percentiles(2) for s in stamps]
        after = [s.percentiles(3) for s in stamps]
        for i, (name, limit) in enumerate([("p50", 1), ("p99", 5)]):
            value = median(r[i] for r in received)
            report.add(SECTION, f"{rate:,} events/s, emit → receiver, {name}",
                       f"**{text(value)} ms**; beside it, emit → commit reported, {name}:"
                       f" {text(median(c[i] for c in committed))} ms",
                       f"< {limit} ms", value < limit, value=value,
                       samples=[r[i] for r in received],
                       committed=[c[i] for c in committed],
                       after_commit=[a[i] for a in after],
                       late_p99=[percentile(sorted(s.late), 99) for s in stamps])
