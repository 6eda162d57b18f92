"""How many flushes of the WAL it costs that nothing is sent which a crash can
take back."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from cluster import payload
from overhead import EMIT, ROWS, UPDATE
from report import median, text

SECTION = "Durable before sent"
CLIENTS = 16
EVENT = "syscalls:sys_enter_fdatasync"	# what the default wal_sync_method calls


def perf_works():
    if os.geteuid() != 0 or not shutil.which("perf"):
        return False
    return subprocess.run(["perf", "stat", "-e", EVENT, "true"],
                          capture_output=True).returncode == 0


class SystemCalls:
    """Counts the flushes of some processes, and of those that they start."""

    def __init__(self, pids):
        self.perf = subprocess.Popen(
            ["perf", "stat", "-x", ";", "-e", EVENT, "-p", ",".join(map(str, pids))],
            stderr=subprocess.PIPE, text=True)

    def stop(self):
        self.perf.send_signal(signal.SIGINT)
        lines = self.perf.communicate()[1].splitlines()
        return sum(int(line.split(";")[0]) for line in lines
                   if EVENT in line and line.split(";")[0].isdigit())


def server_processes(cluster):
    pid = cluster.process.pid
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *children]


def reported_flushes(cluster):
    if cluster.major() >= 18:
        return cluster.sql.number(
            "SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal'")
    return cluster.sql.number("SELECT wal_sync FROM pg_stat_wal")


def one_run(bench, cluster, script, endpoint, seconds, commit, perf):
    if endpoint:
        cluster.create_endpoint("flushes", bench.nginx.url())
    cluster.settle(1)
    everyone = worker = None
    if perf:
        everyone = SystemCalls(server_processes(cluster))
        worker = SystemCalls([cluster.worker()])
        time.sleep(0.5)
    before = reported_flushes(cluster)
    output = cluster.command(
        "pgbench", "-n", "-M", "prepared", "-f", script, "-c", CLIENTS, "-j", 2,
        "-T", seconds, cluster.conninfo() + f" options='-c synchronous_commit={commit}'")
    tps = float(re.search(r"tps = ([0-9.]+)", output)[1])
    result = {"tps": tps}
    if perf:
        result["all"] = everyone.stop() / seconds
        result["worker"] = worker.stop() / seconds
    cluster.settle(2)
    result["reported"] = (reported_flushes(cluster) - before) / seconds
    if endpoint:
        cluster.drop_endpoint("flushes")
    return result


def measure(bench):
    report = bench.report
    perf = perf_works()
    cluster = bench.cluster("flushes")
    sql = cluster.sql
    sql.rows("CREATE TABLE orders (id int PRIMARY KEY, total bigint) WITH (fillfactor = 50)")
    sql.rows(f"INSERT INTO orders SELECT i, 0 FROM generate_series(1, {ROWS}) AS i")
    script = cluster.dir / "emit.sql"
    script.write_text(UPDATE.format(rows=ROWS) + EMIT.format(payload=payload(":id")) + "END;\n")
    seconds = bench.scale(6, 3)
    runs = {}
    for _ in range(bench.repetitions):
        for commit in ("on", "off"):
            for endpoint in (False, True):
                runs.setdefault((commit, endpoint), []).append(
                    one_run(bench, cluster, script, endpoint, seconds, commit, perf))
    cluster.check()
    cluster.stop()

    # The statistics views do not hear of a background worker's flushes unless
    # it says so: without perf they are only what the others did.
    count = "all" if perf else "reported"
    for commit in ("on", "off"):
        without, with_one = runs[commit, False], runs[commit, True]

        def of(sample, key):
            return median(r[key] for r in sample)

        difference = of(with_one, count) - of(without, count)
        note = (f"; the worker's own: **{text(of(with_one, 'worker'))}/s**" if perf
                else "; the worker's own are not among them (perf and root needed)")
        report.add(
            SECTION, f"{CLIENTS} clients, synchronous_commit {commit}: flushes/s with an"
            " endpoint − without",
            f"{text(of(with_one, count))}/s − {text(of(without, count))}/s ="
            f" **{difference:+,.0f}/s**{note}"
            f" (at {text(of(with_one, 'tps'))} and {text(of(without, 'tps'))} transactions/s)",
            without=without, with_endpoint=with_one, counted_by=count)
