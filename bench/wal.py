"""What a delivery leaves behind: WAL, by kind of record, and dead tuples."""
import re

from machine import BenchError, wait_until
from report import median, text

SECTION = "What a delivery leaves behind"


def by_resource_manager(cluster, start, end):
    """Bytes of WAL by resource manager, records and full-page images."""
    output = cluster.command("pg_waldump", "--stats=rmgr", "-p", cluster.data / "pg_wal",
                             "-s", start, "-e", end)
    found = {}
    for line in output.splitlines():
        # name, count, %, record size, %, FPI size, %, combined size, %
        match = re.match(r"(\w+)\s+(\d+) \(.*?\)\s+(\d+) \(.*?\)\s+(\d+) \(", line)
        if match and match[1] != "Total" and int(match[2]):
            found[match[1]] = {"records": int(match[2]), "bytes": int(match[3]),
                               "fpi_bytes": int(match[4])}
    return found


def tuples(cluster):
    """Per table of the extension: inserted, updated, deleted, dead."""
    rows = cluster.sql.rows(
        "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del, n_dead_tup FROM pg_stat_all_tables"
        " WHERE schemaname = 'outbox'")
    return {name: tuple(map(int, counts)) for name, *counts in rows}


def switch(cluster, on):
    """outbox.enabled, and the worker knows."""
    cluster.sql.rows(f"ALTER SYSTEM SET outbox.enabled = {'on' if on else 'off'}")
    cluster.sql.rows("SELECT pg_reload_conf()")
    if not on:
        wait_until(lambda: not cluster.running(), 30, "the worker to be disabled")


def one_run(bench, cluster, count, unread=False, logged="all"):
    """'unread': the worker was off when the events were emitted, and there was a
    checkpoint before it read them.  Then it is the first reader, sets the hint
    bits of the rows, and with checksums logs each page of them: the dearest
    case.  Otherwise it has read them soon after their commit, as it does even
    for a paused endpoint."""
    nginx = bench.nginx
    cluster.create_endpoint("wal", nginx.url(), f", log_attempts => '{logged}'")
    if unread:
        switch(cluster, False)
    else:
        cluster.pause("wal")
    cluster.emit(count)
    cluster.settle(2)
    before_tuples = tuples(cluster)
    before = nginx.requests()
    if unread:
        cluster.sql.rows("CHECKPOINT")
        cluster.settle(0.5)
    start = cluster.lsn()
    if unread:
        switch(cluster, True)
    else:
        cluster.resume("wal")
    nginx.wait_for(before + count, 600)
    cluster.wait_delivered("wal", count)
    cluster.settle(0.5)
    end = cluster.lsn()
    wal = cluster.wal_bytes(start, end)
    # A process reports its counts at most once a second.
    cluster.settle(3)
    after_tuples = tuples(cluster)
    kinds = by_resource_manager(cluster, start, end)
    cluster.drop_endpoint("wal")

    dead, inserted = {}, 0
    for table, after in after_tuples.items():
        was = before_tuples.get(table, (0, 0, 0, 0))
        inserted += after[0] - was[0]
        dead[table] = {"updated": after[1] - was[1], "deleted": after[2] - was[2],
                       "dead": max(0, after[3] - was[3])}
    # The attempts are rows that the worker inserts, for 75 deliveries at most: where it
    # does not report those, its updates would go unseen as well.
    if inserted < count / 75:
        raise BenchError(f"pg_stat_all_tables shows {inserted} inserts after {count}"
                         " deliveries: the worker's changes are not all counted")
    return {"bytes": wal / count, "kinds": kinds,
            "dead": {t: d for t, d in dead.items() if any(d.values())},
            "dead_total": sum(max(d["dead"], d["updated"] + d["deleted"])
                              for d in dead.values())}


def measure(bench):
    report = bench.report
    count = bench.scale(200000, 20000)
    clusters = {False: bench.cluster("wal"), True: bench.cluster("wal-checksums", checksums=True)}
    runs = {}
    for _ in range(bench.repetitions):
        for unread in (False, True):
            for checksums, cluster in clusters.items():
                runs.setdefault((checksums, unread), []).append(
                    one_run(bench, cluster, count, unread))
        runs.setdefault("answers", []).append(one_run(bench, clusters[False], count, logged="answers"))
    for cluster in clusters.values():
        cluster.check()
        cluster.stop()

    plain = runs[False, False]
    report.at_most(SECTION, "WAL per delivery, beyond that of the emit",
                   [r["bytes"] for r in plain], "B", 200, runs=plain)
    kinds = {}
    for run in plain:
        for kind, sizes in run["kinds"].items():
            kinds.setdefault(kind, []).append((sizes["bytes"] + sizes["fpi_bytes"]) / count)
    largest = sorted(((median(v), k) for k, v in kinds.items()), reverse=True)
    report.add(SECTION, "… of that", ", ".join(f"{k} {text(v)} B" for v, k in largest[:5]))
    for words, which in [
            ("… with log_attempts 'answers'", "answers"),
            ("… worker off during the emit, checkpoint before it reads", (False, True)),
            ("… with data checksums", (True, False)),
            ("… with data checksums, worker off during the emit, checkpoint before it reads"
             " (a hint bit then logs its page)", (True, True))]:
        report.at_most(SECTION, words, [r["bytes"] for r in runs[which]], "B",
                       runs=runs[which])
    hints = median(r["kinds"].get("XLOG", {}).get("fpi_bytes", 0) / count
                   for r in runs[True, True])
    if hints < 50:
        raise BenchError(f"{hints:.0f} B of page images per delivery: the worker was not"
                         " the first reader, and that row does not say what it should")
    report.at_most(SECTION, f"dead tuples after {count:,} deliveries, all tables"
                   " of the extension", [r["dead_total"] for r in plain], "tuples", 999,
                   tables=[r["dead"] for r in plain])
