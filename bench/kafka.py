"""Records per second to Apache Kafka with a backlog, beside a bare librdkafka loop,
kcat and Kafka's own producer, which send records of the same size to the same broker."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from latency import Stamps, emit_at
from machine import HERE, BenchError, free_port, run, wait_until
from report import median, text

SECTION = "Kafka"
IN_FLIGHT = 1000			# the default
MANY_IN_FLIGHT = 2000		# more than outbox.worker_max_in_flight allows by default

# name, in words, bytes of payload, number of keys, in flight, least ratio to the loop
VARIANTS = [
    ("plain", "100 B, no keys", 100, 0, MANY_IN_FLIGHT, 0.5),
    ("keyed", "100 B, 10,000 keys", 100, 10000, MANY_IN_FLIGHT, 0.5),
    ("default", "100 B, 10,000 keys", 100, 10000, IN_FLIGHT, None),
    ("large", "1 kB, 10,000 keys", 1000, 10000, IN_FLIGHT, 0.5),
    ("one", "100 B, one key: one record at a time", 100, 1, 1, None),
]
TARGET = 120000			# records/s with 10,000 keys
CPU_TARGET = 6			# µs of the worker for each
PARTITIONS = 3
EMIT = "SELECT outbox.emit('bench.latency', $1::jsonb)"

CONFIGURATION = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{address}
controller.listener.names=CONTROLLER
log.dirs={dir}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=11000000
"""


class Broker:
    """Apache Kafka of one node."""

    def __init__(self, machine):
        self.machine = machine
        self.jars = pathlib.Path(os.environ.get("OUTBOX_TEST_CACHE", "/var/cache/outbox-test")) / "kafka"
        if not (self.jars / "complete").exists():
            raise BenchError(f"no Kafka in {self.jars}: Maven could not fetch it")
        self.dir = machine.subdir("broker")
        self.address = f"127.0.0.1:{free_port()}"
        (self.dir / "address").write_text(self.address)
        (self.dir / "server.properties").write_text(CONFIGURATION.format(
            address=self.address, controller=free_port(), dir=self.dir))
        self.log = self.dir / "log"
        self.command("format")
        self.start()
        self.topics = 0

    def start(self):
        self.process = self.machine.start(*self.argv("run"), user=self.machine.user, log=self.log)
        wait_until(self.answers, 120, f"Kafka to answer (log: {self.log})", every=0.5)

    def argv(self, *command):
        return [HERE.parent / "test" / "kafka" / "broker", self.jars, self.dir, *command]

    def command(self, *command, log=None):
        log = log or self.log
        process = self.machine.start(*self.argv(*command), user=self.machine.user, log=log)
        if process.wait(120) != 0:
            raise BenchError(f"kafka {' '.join(map(str, command))} failed (log: {log}, --keep)")

    def answers(self):
        return subprocess.run(["kcat", "-L", "-b", self.address, "-m", "2"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def topic(self):
        """A new topic: each run begins with an empty one."""
        self.topics += 1
        name = f"bench{self.topics}"
        self.command("topic", name, PARTITIONS)
        return name

    def records(self, topic):
        """How many records it has, by the ends of its partitions."""
        done = subprocess.run(["kcat", "-Q", "-b", self.address,
                               *(a for p in range(PARTITIONS) for a in ("-t", f"{topic}:{p}:-1"))],
                              check=True, text=True, capture_output=True)
        return sum(int(line.split("offset")[1]) for line in done.stdout.splitlines())

    def headers(self, topic):
        """The names of its first record's headers, each with the length of its value."""
        done = subprocess.run(["kcat", "-C", "-q", "-b", self.address, "-t", topic, "-o", "beginning", "-c", "1",
                               "-f", "%h"], check=True, text=True, capture_output=True)
        return [(name, len(value)) for name, value in (h.split("=", 1) for h in done.stdout.split(","))]

    def stop(self, sig=signal.SIGTERM):
        self.machine.stop(self.process, sig)


def prepare(machine):
    """Kafka, and what the machine lacked when the extension and the loop were built."""
    run(HERE.parent / "test" / "bin" / "setup", "bench", "kafka", "clients", env={**os.environ, "CLIENTS": "kafka"})
    machine.install()
    run("make", "-s", "-C", HERE, f"PG_CONFIG={machine.pg_config}")
    if not (HERE / "kafka_loop").exists():
        raise BenchError("there is no librdkafka to build with (Debian: librdkafka-dev)")


def warm_up(count):
    """So many records, of ours and of the loop's, are stored before the clock starts: the
    first ones of a broker, of a connection and of a topic take longer than all others."""
    return count // 10


def loop(broker, count, size, keys, in_flight):
    done = subprocess.run(
        [str(a) for a in (HERE / "kafka_loop", "-b", broker.address, "-t", broker.topic(), "-n", count,
                          "-w", warm_up(count), "-s", size, "-k", keys, "-c", in_flight)],
        stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise BenchError("the librdkafka loop failed: see its message above")
    return json.loads(done.stdout)


def values(machine, count, size, keys):
    """A file with a record in each line, as the loop makes them: "KEY|VALUE", or the value alone."""
    path = machine.dir / f"records-{count}-{size}-{keys}"
    if not path.exists():
        text = "x" * (size - len('{"order": 1000000, "text": ""}'))
        with path.open("w") as out:
            for i in range(count):
                key = f"customer-{i % keys}|" if keys else ""
                out.write(f'{key}{{"order": {1000000 + i}, "text": "{text}"}}\n')
    return path


def kcat(machine, broker, count, size, keys):
    """Records/s of kcat, from its start to its end, with keys and headers, as many in flight as it likes."""
    path = values(machine, count, size, keys)
    topic = broker.topic()
    headers = {"content-type": "application/json", "outbox-id": "0190163d-8694-739b-aea5-966c26f8ad91",
               "outbox-topic": "bench.order", "outbox-type": "bench.order", "outbox-attempt": "1"}
    begun = time.monotonic()
    run("kcat", "-P", "-q", "-b", broker.address, "-t", topic, "-l", *(["-K", "|"] if keys else []),
        *(a for name, value in headers.items() for a in ("-H", f"{name}={value}")),
        *(a for more in ("acks=all", "enable.idempotence=true", "linger.ms=0", "partitioner=murmur2_random")
          for a in ("-X", more)), path)
    rate = count / (time.monotonic() - begun)
    if broker.records(topic) != count:
        raise BenchError(f"kcat has sent {broker.records(topic)} of {count} records")
    return rate


def java(machine, broker, count, size):
    """Records/s of Kafka's own ProducerPerformance, after its warm-up.  It has no keys and no headers."""
    log = machine.dir / f"performance-{time.monotonic_ns()}"
    broker.command("perf", "--topic", broker.topic(), "--num-records", count + warm_up(count), "--warmup-records", warm_up(count),
                   "--throughput", -1, "--payload-file", values(machine, count, size, 0),
                   "--command-property", "acks=all", "linger.ms=0", log=log)
    return float(re.findall(r"([\d.]+) records/sec", log.read_text())[-1])


def drain(cluster, broker, count, size, keys, in_flight):
    topic = broker.topic()
    cluster.create_endpoint("kafka", f"kafka://{broker.address}/{topic}",
                            f", format => 'raw', timeout => '60 s', max_in_flight => {in_flight}")
    cluster.emit(warm_up(count), keys=keys, size=size)
    cluster.wait_delivered("kafka", warm_up(count))
    cluster.pause("kafka")
    cluster.emit(count, keys=keys, size=size)
    result = cluster.drain("kafka", count, before=warm_up(count))
    return {**result, "twice": broker.records(topic) - warm_up(count) - count}


def latency(bench, cluster, broker, rate, seconds):
    topic = broker.topic()
    arrived, sent = cluster.dir / f"arrived{rate}", bench.machine.dir / f"sent{rate}"
    cluster.create_endpoint("latency", f"kafka://{broker.address}/{topic}",
                            ", topics => '{bench.latency,bench.first}', format => 'raw'")
    reader = bench.machine.start(HERE / "kafka_loop", "-R", "-b", broker.address, "-t", topic, "-n", rate * seconds + 1,
                                 "-o", arrived, log=bench.machine.dir / "reader.log")
    # One record has come the whole way before the clock starts.
    cluster.sql.rows("SELECT outbox.emit('bench.first', '{\"n\": -1}')")
    wait_until(lambda: arrived.exists() and arrived.stat().st_size > 0, 60, "the first record")
    emitter = bench.machine.start(HERE / "emitter", "-d", cluster.conninfo(), "-q", EMIT, "-o", sent,
                                  "-r", rate, "-s", seconds, log=bench.machine.dir / "emitter.log")
    if emitter.wait(seconds + 60) != 0 or reader.wait(60) != 0:
        raise BenchError("see emitter.log and reader.log (--keep)")
    cluster.drop_endpoint("latency")
    pairs = [tuple(map(int, line.split())) for line in arrived.read_text().splitlines()]
    first = {}
    for number, at in pairs:
        first.setdefault(number, at)
    return Stamps(sent, first, len(pairs) - len(first))


def measure(bench):
    report = bench.report
    count = bench.scale(200000, 50000)
    prepare(bench.machine)
    broker = Broker(bench.machine)
    cluster = bench.cluster("kafka", more="outbox.sinks = 'webhook, kafka'\n"
                            f"outbox.worker_max_in_flight = {2 * MANY_IN_FLIGHT}\n")
    ours = {name: [] for name, *_ in VARIANTS}
    bare = {name: [] for name, *_ in VARIANTS}
    others = {name: {"kcat": [], "ProducerPerformance": []} for name, *_ in VARIANTS}
    loop(broker, count, 100, 10000, IN_FLIGHT)	# the broker's Java compiles
    of_loop = broker.headers(f"bench{broker.topics}")
    drain(cluster, broker, count // 10, 100, 10000, IN_FLIGHT)
    of_ours = broker.headers(f"bench{broker.topics}")
    if of_loop != of_ours:
        raise BenchError(f"the loop's records have other headers than ours: {of_loop}, {of_ours}")
    for _ in range(bench.repetitions):
        for name, _, size, keys, in_flight, _ in VARIANTS:
            n = count if keys != 1 else count // 10
            bare[name].append(loop(broker, n, size, keys, in_flight))
            ours[name].append(drain(cluster, broker, n, size, keys, in_flight))
            if keys != 1 and name != "default":
                others[name]["kcat"].append(kcat(bench.machine, broker, n, size, keys))
            if keys == 0:
                others[name]["ProducerPerformance"].append(java(bench.machine, broker, n, size))
    stamps = {rate: latency(bench, cluster, broker, rate, bench.scale(30, 10)) for rate in (100, 1000)}
    cluster.check()
    cluster.stop()

    rates = {name: [r["per_s"] for r in ours[name]] for name in ours}
    cpu = {name: median(r["cpu_us"] for r in ours[name]) for name in ours}
    for name, words, _, _, in_flight, least in VARIANTS:
        report.ratio(SECTION, f"{words}, {in_flight:,} in flight: records/s ÷ records/s of a bare librdkafka loop",
                     rates[name], [r["per_s"] for r in bare[name]], at_least=least,
                     runs=ours[name], loops=bare[name])
        for other, each in others[name].items():
            if each:
                report.add(SECTION, f"{words}, records/s of {other}, as many in flight as it likes",
                           f"{text(median(each))} ({text(min(each))}–{text(max(each))})", samples=each)
        report.add(SECTION, f"CPU per record, {words}, {in_flight:,} in flight: worker beside loop",
                   f"{text(cpu[name])} µs, {text(median(r['cpu_us'] for r in bare[name]))} µs",
                   f"≤ {CPU_TARGET} µs" if name == "keyed" else "",
                   cpu[name] <= CPU_TARGET if name == "keyed" else None)
    report.add(SECTION, "records/s with 10,000 keys", text(median(rates["keyed"])), f"≥ {TARGET:,}",
               median(rates["keyed"]) >= TARGET)
    report.at_most(SECTION, "WAL per record", [r["wal"] for r in ours["keyed"]], "B")
    for rate, each in stamps.items():
        p50, p99 = each.percentiles(1)
        report.add(SECTION, f"emit → consumer at {rate:,} events/s: p50, p99", f"{text(p50)} ms, {text(p99)} ms")
    twice = sum(r["twice"] for runs in ours.values() for r in runs) + sum(each.again for each in stamps.values())
    report.add(SECTION, "records that are there twice", str(twice), "0", twice == 0, counted=True)
