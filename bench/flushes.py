"""How many flushes of the WAL it costs that nothing is sent which a crash can
take back."""
import os
import re
import shutil
import subprocess

from overhead import EMIT, ROWS, UPDATE
from cluster import payload
from report import median, text

SECTION = "Durable before sent"
CLIENTS = 16


def wal_syncs(cluster):
    if cluster.major() >= 18:
        return cluster.sql.number(
            "SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal'")
    return cluster.sql.number("SELECT wal_sync FROM pg_stat_wal")


def perf_works():
    if os.geteuid() != 0 or not shutil.which("perf"):
        return False
    return subprocess.run(["perf", "stat", "-e", "syscalls:sys_enter_fdatasync", "true"],
                          capture_output=True).returncode == 0


def one_run(bench, cluster, script, endpoint, seconds, commit):
    """Flushes and commits per second; the flushes of the worker by itself when
    perf can count them."""
    if endpoint:
        cluster.create_endpoint("flushes", bench.nginx.url())
    cluster.settle(1)
    counter = None
    if bench.perf:
        # A process that ends before its statistics are due takes them along:
        # the system calls of all processes are the count to trust.
        counter = subprocess.Popen(
            ["perf", "stat", "-x", ";", "--per-thread", "-e",
             "syscalls:sys_enter_fdatasync", "-p", str(cluster.worker()),
             "sleep", str(seconds)], stderr=subprocess.PIPE, text=True)
    before = wal_syncs(cluster)
    output = cluster.command(
        "pgbench", "-n", "-M", "prepared", "-f", script, "-c", CLIENTS, "-j", 2,
        "-T", seconds, cluster.conninfo() + f" options='-c synchronous_commit={commit}'")
    tps = float(re.search(r"tps = ([0-9.]+)", output)[1])
    cluster.settle(3)
    syncs = (wal_syncs(cluster) - before) / seconds
    own = None
    if counter:
        # One line per thread: libcurl's resolver threads come and go.
        lines = counter.communicate()[1].splitlines()
        own = sum(int(line.split(";")[1]) for line in lines
                  if "fdatasync" in line and line.split(";")[1].isdigit()) / seconds
    if endpoint:
        cluster.drop_endpoint("flushes")
    return {"tps": tps, "syncs": syncs, "worker": own}


def measure(bench):
    report = bench.report
    bench.perf = perf_works()
    cluster = bench.cluster("flushes")
    sql = cluster.sql
    sql.rows("CREATE TABLE orders (id int PRIMARY KEY, total bigint) WITH (fillfactor = 50)")
    sql.rows(f"INSERT INTO orders SELECT i, 0 FROM generate_series(1, {ROWS}) AS i")
    script = cluster.dir / "emit.sql"
    script.write_text(UPDATE.format(rows=ROWS) + EMIT.format(payload=payload(":id")) + "END;\n")
    seconds = bench.scale(10, 3)
    runs = {}
    for _ in range(bench.repetitions):
        for commit in ("on", "off"):
            for endpoint in (False, True):
                runs.setdefault((commit, endpoint), []).append(
                    one_run(bench, cluster, script, endpoint, seconds, commit))
    cluster.check()
    cluster.stop()

    for commit in ("on", "off"):
        without, with_one = runs[commit, False], runs[commit, True]
        of = lambda r, key: median(x[key] for x in r)
        own = ""
        if bench.perf:
            own = f"; {text(of(with_one, 'worker'))}/s of them by the worker"
        report.add(
            SECTION, f"{CLIENTS} clients, synchronous_commit {commit}: flushes/s with an"
            " endpoint − without",
            f"{text(of(with_one, 'syncs'))}/s − {text(of(without, 'syncs'))}/s ="
            f" **{of(with_one, 'syncs') - of(without, 'syncs'):+.0f}/s**{own}"
            f" (at {text(of(with_one, 'tps'))} and {text(of(without, 'tps'))} transactions/s)",
            without=without, with_endpoint=with_one)
