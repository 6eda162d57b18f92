"""What an event costs the worker before any sink has to do with it: a sink that
accepts everything at once, without a network (test/sinks/outbox_null.c)."""
import pathlib
import shutil

from machine import HERE, run
from report import median, text

SECTION = "The worker alone"
TARGET = 600000

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
        cluster.check()
        cluster.stop()
    finally:
        remove()
    for name, words, *_ in VARIANTS:
        report.add(SECTION, f"{count:,} events waiting, {words}: events/s into a sink that accepts at once",
                   f"{text(median(r['per_s'] for r in samples[name]))}/s,"
                   f" {text(median(r['cpu_us'] for r in samples[name]))} µs of CPU each",
                   f"≥ {TARGET:,}", median(r["per_s"] for r in samples[name]) >= TARGET, runs=samples[name])
