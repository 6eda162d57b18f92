"""What webhooks notice of an endpoint of Kafka whose broker hangs, or is dead.

Without fsync, and from the commit's return: what is compared is the worker, not the disk."""
import signal

from kafka import Broker, prepare
from latency import emit_at
from report import median, percentile, text

SECTION = "Webhooks beside a Kafka in trouble"
RATE = 500				# webhooks a second
WAITING = 2000			# events for Kafka, with keys of their own
BESIDE = 1.2			# times the p99 beside a broker that is well


def measure(bench):
    report = bench.report
    seconds = bench.scale(6, 3)
    prepare(bench.machine)
    broker = Broker(bench.machine)
    cluster = bench.cluster("beside", more="outbox.sinks = 'webhook, kafka'\nfsync = off\n")
    cluster.create_endpoint("stuck", f"kafka://{broker.address}/{broker.topic()}",
                            ", topics => '{bench.stuck}', timeout => '10 min'")
    took = {"well": [], "hangs": [], "dead": []}
    cpu = {state: [] for state in took}
    events = 0

    def one(state):
        before = cluster.worker_cpu()
        stamps = emit_at(bench, cluster, RATE, seconds)
        cpu[state].append((cluster.worker_cpu() - before) * 1e6 / len(stamps.events))
        took[state].append(sorted(e[3] for e in stamps.events))

    def stuck():
        nonlocal events
        events += WAITING
        cluster.sql.rows("SELECT count(outbox.emit('bench.stuck', '{\"n\": 1}', key => n::text))"
                         f" FROM generate_series(1, {WAITING}) AS n")

    emit_at(bench, cluster, RATE, 1)		# the first connections, caches
    for _ in range(bench.repetitions):
        stuck()
        cluster.wait_delivered("stuck", events)
        cluster.settle(2)
        one("well")
        broker.process.send_signal(signal.SIGSTOP)
        stuck()
        cluster.settle(2)
        one("hangs")
        broker.process.send_signal(signal.SIGCONT)
        cluster.wait_delivered("stuck", events)
        broker.stop(signal.SIGKILL)
        stuck()
        cluster.settle(2)
        one("dead")
        broker.start()
        cluster.wait_delivered("stuck", events)
    cluster.check()
    cluster.stop()

    p99 = {state: [percentile(values, 99) for values in runs] for state, runs in took.items()}
    for state in ("hangs", "dead"):
        value = median(p99[state]) / median(p99["well"])
        each = sorted(a / b for a, b in zip(p99[state], p99["well"]))
        report.add(SECTION, f"p99 at {RATE} events/s, commit reported → receiver, beside a broker that"
                   f" {'hangs' if state == 'hangs' else 'is dead'} ÷ beside one that is well",
                   f"{text(median(p99[state]))} ms ÷ {text(median(p99['well']))} ms = **{value:.2f}**"
                   f" ({each[0]:.2f}–{each[-1]:.2f})", f"≤ {BESIDE}", value <= BESIDE, samples=p99)
    report.add(SECTION, "… p50 of the same, well, hangs, dead",
               ", ".join(f"{text(median(v for r in took[s] for v in r))} ms" for s in took))
    report.add(SECTION, "… CPU of the worker with all its threads for each webhook, well, hangs, dead",
               ", ".join(f"{text(median(cpu[s]))} µs" for s in took), samples=cpu)
