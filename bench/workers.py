"""Two busy endpoints and two workers, beside one worker; and what set the
limit: a worker's core, the receiver's, or all there are."""
import os
import time

from machine import BenchError, children, cpu_seconds, wait_until
from report import median

SECTION = "Several workers"
ENDPOINTS = ("left", "right")


def set_workers(cluster, number):
    cluster.sql.rows(f"ALTER SYSTEM SET outbox.workers_per_database = {number}")
    cluster.sql.rows("SELECT pg_reload_conf()")
    wait_until(lambda: cluster.sql.value(
        f"SELECT count(*) = {number} AND sum(endpoints) = {len(ENDPOINTS)} AND min(endpoints) > 0"
        " FROM outbox.workers WHERE pid IS NOT NULL") == "t", 30, f"{number} workers")
    return [int(row[0]) for row in cluster.sql.rows(
        "SELECT pid FROM outbox.workers WHERE pid IS NOT NULL ORDER BY worker")]


def drain(bench, cluster, number, count):
    """Both endpoints get 'count' events that wait for them."""
    nginx = bench.nginx
    for name in ENDPOINTS:
        cluster.create_endpoint(name, nginx.url())
    workers = set_workers(cluster, number)
    for name in ENDPOINTS:
        cluster.pause(name)
    cluster.emit(count)
    cluster.settle()
    receiver = children(nginx.process.pid)
    if not receiver:
        raise BenchError("nginx has no worker process")
    pids = {"workers": workers, "receiver": receiver}
    cpu = {what: [cpu_seconds(pid) for pid in those] for what, those in pids.items()}
    before = nginx.requests()
    begun = time.monotonic()
    for name in ENDPOINTS:
        cluster.resume(name)
    ended = nginx.wait_for(before + len(ENDPOINTS) * count, 600)
    took = ended - begun
    shares = {what: [(cpu_seconds(pid) - was) / took for pid, was in zip(those, cpu[what])]
              for what, those in pids.items()}
    for name in ENDPOINTS:
        cluster.wait_delivered(name, count)
        cluster.drop_endpoint(name)
    return {"per_s": len(ENDPOINTS) * count / took, **shares}


def percent(shares):
    return " + ".join(f"{share:.0%}" for share in shares)


def measure(bench):
    report = bench.report
    count = bench.scale(150000, 30000)
    cluster = bench.cluster("workers")
    runs = {1: [], 2: []}
    for _ in range(bench.repetitions):
        for number, results in runs.items():
            results.append(drain(bench, cluster, number, count))
    cluster.check()
    cluster.stop()

    report.ratio(SECTION, f"2 endpoints, {count:,} events each waiting: deliveries/s of 2 workers"
                 " ÷ of 1", [r["per_s"] for r in runs[2]], [r["per_s"] for r in runs[1]],
                 two=runs[2], one=runs[1])
    for number, results in runs.items():
        middle = sorted(results, key=lambda r: r["per_s"])[len(results) // 2]
        busy = median(sum(r["workers"]) + sum(r["receiver"]) for r in results)
        report.add(SECTION, f"CPU with {number}: of a core each, workers; receiver",
                   f"{percent(middle['workers'])}; {percent(middle['receiver'])}"
                   f" (together {busy:.1f} of {os.cpu_count()} cores)")
