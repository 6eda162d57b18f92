"""Deliveries per second with a backlog, beside a bare libcurl loop that sends
the same bytes to the same receiver."""
import json
import subprocess
import time

from machine import HERE, BenchError, cpu_seconds, wait_until
from receivers import UNLUCKY, Receiver
from report import median, text

SECTION = "Draining a backlog"
IN_FLIGHT = 32					# create_endpoint's default
BATCH = 100

# name, in words, number of keys, to the unlucky receiver
VARIANTS = [
    ("plain", "no keys", 0, False),
    ("keyed", "10,000 keys", 10000, False),
    ("failing", "5 % of the events fail once", 0, True),
]


def capture(bench, cluster, keys):
    """The file with one request as the worker sends it."""
    receiver = Receiver(bench.machine, dump=True)
    cluster.create_endpoint("capture", receiver.url())
    cluster.emit(1, keys=keys)
    wait_until(receiver.dump.exists, 15, "the worker's first request")
    cluster.wait_delivered("capture", 1)
    cluster.drop_endpoint("capture")
    receiver.stop()
    return receiver.dump


def loop(bench, request, count, unlucky):
    """The yardstick, once.  Whoever watches the worker's requests watches these
    too: that costs both the same."""
    before = bench.nginx.requests()
    process = subprocess.Popen(
        [str(a) for a in (HERE / "loop", "-r", request, "-n", count, "-c", IN_FLIGHT,
                          bench.nginx.url(unlucky))],
        stdout=subprocess.PIPE, text=True)
    bench.nginx.wait_for(before + count, 600)
    output = process.communicate()[0]
    if process.returncode != 0:
        raise BenchError("the libcurl loop failed: see its message above")
    return json.loads(output)


def drain(bench, cluster, count, keys=0, unlucky=False):
    """Emits 'count' events to a paused endpoint, resumes it, and waits."""
    nginx = bench.nginx
    cluster.create_endpoint("drain", nginx.url(unlucky))
    cluster.pause("drain")
    cluster.emit(count, keys=keys)
    extra = 0
    if unlucky:
        extra = int(cluster.sql.value(
            f"SELECT count(*) FROM (SELECT id FROM outbox.events ORDER BY seq DESC"
            f" LIMIT {count}) AS e WHERE id::text ~ '{UNLUCKY}'"))
    cluster.settle()
    pid = cluster.worker()
    before = nginx.requests()
    progress = []
    cpu = cpu_seconds(pid)
    begun = time.monotonic()
    cluster.resume("drain")
    ended = nginx.wait_for(before + count + extra, 600, progress)
    cluster.wait_delivered("drain", count)
    cpu = cpu_seconds(pid) - cpu
    duplicates = nginx.requests() - before - count - extra
    cluster.drop_endpoint("drain")

    # A failed event waits for its retry, up to a second: what was sent until
    # nine tenths had gone out tells the pace without that tail.
    nine_tenths = before + (count + extra) * 9 // 10
    paced = next(at for at, done in progress if done >= nine_tenths)
    return {"per_s": count / (ended - begun),
            "paced_per_s": count * 0.9 / (paced - begun),
            "cpu_us": cpu * 1e6 / (count + extra), "duplicates": duplicates}


def drain_batches(bench, cluster, count):
    """The same in batches.  The receiver counts requests, so the worker has to say
    when all is delivered."""
    before = bench.nginx.requests()
    cluster.create_endpoint("batches", bench.nginx.url(False), f", batch_size => {BATCH}")
    cluster.pause("batches")
    cluster.emit(count)
    result = cluster.drain("batches", count)
    return {**result, "requests": bench.nginx.requests() - before}


def header_facts(path):
    """How many header lines the captured request has, and its sizes."""
    head, _, body = path.read_bytes().partition(b"\r\n\r\n")
    return head.count(b"\r\n"), len(head) + 4, len(body)


def measure(bench):
    report = bench.report
    count = bench.scale(200000, 50000)
    cluster = bench.cluster("drain")
    requests = {keys: capture(bench, cluster, keys) for keys in (0, 10000)}
    lines, head, body = header_facts(requests[0])
    ours = {name: [] for name, *_ in VARIANTS}
    bare = {name: [] for name, *_ in VARIANTS}
    batches = []
    for _ in range(bench.repetitions):
        for name, _, keys, unlucky in VARIANTS:
            bare[name].append(loop(bench, requests[keys], count, unlucky))
            ours[name].append(drain(bench, cluster, count, keys, unlucky))
        batches.append(drain_batches(bench, cluster, 2 * count))
    cluster.check()
    cluster.stop()

    report.add(SECTION, "the request", f"{lines} header lines, {head} B + {body} B of body",
               events=count, in_flight=IN_FLIGHT)
    for name, words, _, unlucky in VARIANTS:
        report.ratio(SECTION, f"{count:,} events waiting, {words}: deliveries/s"
                     " ÷ requests/s of a bare libcurl loop",
                     [r["per_s"] for r in ours[name]], [r["per_s"] for r in bare[name]],
                     at_least=None if unlucky else 0.85, runs=ours[name], loops=bare[name])
        if unlucky:
            report.ratio(SECTION, "the same until 90 % had been sent (the rest waits for"
                         " retries)", [r["paced_per_s"] for r in ours[name]],
                         [r["per_s"] for r in bare[name]])
        report.add(SECTION, f"CPU per request, {words}: worker beside loop",
                   f"{text(median(r['cpu_us'] for r in ours[name]))} µs,"
                   f" {text(median(r['cpu_us'] for r in bare[name]))} µs")
    report.ratio(SECTION, f"{2 * count:,} events waiting, batch_size {BATCH}: deliveries/s"
                 " ÷ deliveries/s of single requests",
                 [r["per_s"] for r in batches], [r["per_s"] for r in ours["plain"]],
                 at_least=5, runs=batches)
    report.add(SECTION, f"CPU per event, batch_size {BATCH}: worker",
               f"{text(median(r['cpu_us'] for r in batches))} µs,"
               f" {text(median(2 * count / r['requests'] for r in batches))} events a request")
    report.figures["throughput"] = [
        {"what": words, "outbox": [r["per_s"] for r in ours[name]],
         "loop": [r["per_s"] for r in bare[name]]} for name, words, *_ in VARIANTS]
    again = sum(r["duplicates"] for runs in ours.values() for r in runs)
    report.add(SECTION, "requests that were sent twice", str(again), "0", again == 0, counted=True)
