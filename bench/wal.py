"""What a delivery leaves behind: WAL, by kind of record, and dead tuples."""
import json
import re

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
    """Per table of the extension: updated, deleted, dead."""
    rows = cluster.sql.rows(
        "SELECT relname, n_tup_upd, n_tup_del, n_dead_tup FROM pg_stat_all_tables"
        " WHERE schemaname = 'outbox'")
    return {name: tuple(map(int, counts)) for name, *counts in rows}


def one_run(bench, cluster, count):
    nginx = bench.nginx
    cluster.create_endpoint("wal", nginx.url())
    cluster.pause("wal")
    cluster.emit(count)
    cluster.settle(2)
    before_tuples = tuples(cluster)
    before = nginx.requests()
    cluster.resume("wal")
    start = cluster.lsn()
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

    dead = {}
    for table, after in after_tuples.items():
        was = before_tuples.get(table, (0, 0, 0))
        dead[table] = {"updated": after[0] - was[0], "deleted": after[1] - was[1],
                       "dead": max(0, after[2] - was[2])}
    return {"bytes": wal / count, "kinds": kinds,
            "dead": {t: d for t, d in dead.items() if any(d.values())},
            "dead_total": sum(max(d["dead"], d["updated"] + d["deleted"])
                              for d in dead.values())}


def measure(bench):
    report = bench.report
    count = bench.scale(200000, 20000)
    clusters = {False: bench.cluster("wal"), True: bench.cluster("wal-checksums", checksums=True)}
    runs = {False: [], True: []}
    for _ in range(bench.repetitions):
        for checksums, cluster in clusters.items():
            runs[checksums].append(one_run(bench, cluster, count))
    for cluster in clusters.values():
        cluster.check()
        cluster.stop()

    plain = runs[False]
    report.at_most(SECTION, "WAL per delivery, beyond that of the emit",
                   [r["bytes"] for r in plain], "B", 200, runs=plain)
    kinds = {}
    for run in plain:
        for kind, sizes in run["kinds"].items():
            kinds.setdefault(kind, []).append((sizes["bytes"] + sizes["fpi_bytes"]) / count)
    largest = sorted(((median(v), k) for k, v in kinds.items()), reverse=True)
    report.add(SECTION, "… of that", ", ".join(f"{k} {text(v)} B" for v, k in largest[:5]))
    report.at_most(SECTION, "… with data checksums (setting a hint bit may log a page)",
                   [r["bytes"] for r in runs[True]], "B", runs=runs[True])
    report.at_most(SECTION, f"dead tuples after {count:,} deliveries, all tables"
                   " of the extension", [r["dead_total"] for r in plain], "", 1000,
                   tables=[r["dead"] for r in plain])
