"""What an event costs the worker before any sink has to do with it: a sink that
accepts everything at once, without a network (test/sinks/outbox_null.c)."""
import pathlib
import shutil
import time

from machine import HERE, cpu_ms, run, wait_until
from report import median, text

SECTION = "The worker alone"
TARGET = 600000
BUCKET = 300					# s: figures are kept by five minutes
EVERY = 0.05					# s between events to all endpoints, so that each has a settle of its own

# name, in words, number of keys, outbox.log_attempts
VARIANTS = [("plain", "no keys", 0, "all"), ("keyed", "10,000 keys", 10000, "all"),
            ("failures", "10,000 keys, log_attempts = failures", 10000, "failures")]


def install(machine):
    """The sink's library, where the server looks for it."""
    sources = machine.subdir("null")
    for name in ("outbox_null.c", "Makefile"):
        shutil.copy(HERE.parent / "test" / "sinks" / name, sources)
    run("make", "-s", "-C", sources, f"PG_CONFIG={machine.pg_config}", "MODULES=outbox_null", "with_llvm=no",
        "outbox_null.so")
    place = pathlib.Path(run(machine.pg_config, "--pkglibdir").strip())
    writable = [] if machine.writable() else ["sudo"]
    run(*writable, "cp", sources / "outbox_null.so", place)
    return lambda: run(*writable, "rm", "-f", place / "outbox_null.so")


def drain(cluster, count, keys, logged):
    cluster.sql.rows(f"ALTER SYSTEM SET outbox.log_attempts = '{logged}'")
    cluster.sql.rows("SELECT pg_reload_conf()")
    cluster.create_endpoint("core", "null://h/")
    cluster.pause("core")
    cluster.emit(count, keys=keys)
    return cluster.drain("core", count)


def spent(cluster, run_it):
    """CPU of the worker in ms, and bytes of WAL, while something is done."""
    pid = cluster.worker()
    ran, lsn = cpu_ms(pid), cluster.lsn()
    run_it()
    return cpu_ms(pid) - ran, cluster.wal_bytes(lsn, cluster.lsn())


def figures(cluster, endpoints, each):
    """What the figures of a bucket cost, beside the deliveries in it: endpoints that get an event a second."""
    cluster.sql.rows("ALTER SYSTEM RESET outbox.log_attempts")
    cluster.sql.rows("SELECT pg_reload_conf()")
    topic = f"bench.figures.{each}"
    cluster.sql.rows(f"SELECT count(outbox.create_endpoint('f{each}-' || i, 'null://h/', topics => '{{{topic}}}'))"
                     f" FROM generate_series(1, {endpoints}) AS i")
    left = BUCKET - time.time() % BUCKET
    if left < 2 * each * EVERY + 60:
        time.sleep(left)
    time.sleep(15)				# the figures of the bucket before are written

    def deliver():
        for _ in range(each):
            cluster.emit(1, topic=topic)
            time.sleep(EVERY)
        wait_until(lambda: cluster.sql.number(f"SELECT sum(delivered) FROM outbox.stats WHERE endpoint ~ '^f{each}-'") >= endpoints * each,
                   60, "the events to be delivered")
        time.sleep(1)

    delivered = spent(cluster, deliver)
    time.sleep(BUCKET - 2 - time.time() % BUCKET)
    written = spent(cluster, lambda: time.sleep(10))
    idle = spent(cluster, lambda: time.sleep(10))
    rows = cluster.sql.number("SELECT count(*) FROM outbox.figures f CROSS JOIN outbox.figures_of(f.entries) e"
                              f" WHERE e.endpoint_id > 0 AND f.piece < 3 AND e.delivered = {each}")
    assert rows == endpoints, f"{rows} buckets of {endpoints} endpoints were written"
    return [(w - i) / d for w, i, d in zip(written, idle, delivered)]


def measure(bench):
    report = bench.report
    count = bench.scale(1000000, 300000)
    remove = install(bench.machine)
    try:
        cluster = bench.cluster("core", more="outbox.sinks = 'webhook, null'\n")
        samples = {name: [] for name, *_ in VARIANTS}
        for _ in range(bench.repetitions):
            for name, _, keys, logged in VARIANTS:
                samples[name].append(drain(cluster, count, keys, logged))
        if not bench.quick:
            for each in 300, 20:
                cpu, wal = figures(cluster, 1000, each)
                report.add(SECTION, f"figures of 1,000 endpoints ÷ their {each} deliveries each, in a bucket of five minutes",
                           f"CPU {100 * cpu:.2f} %, WAL {100 * wal:.2f} %", "≤ 1 %", max(cpu, wal) <= 0.01)
        cluster.check()
        cluster.stop()
    finally:
        remove()
    for name, words, *_ in VARIANTS:
        report.add(SECTION, f"{count:,} events waiting, {words}: events/s into a sink that accepts at once",
                   f"{text(median(r['per_s'] for r in samples[name]))}/s,"
                   f" {text(median(r['cpu_us'] for r in samples[name]))} µs of CPU each",
                   f"≥ {TARGET:,}", median(r["per_s"] for r in samples[name]) >= TARGET, runs=samples[name])
