"""What inbox.accept() costs the transaction that calls it, beside a plain INSERT … ON
CONFLICT DO NOTHING into a table with the same columns and key."""
import re

from report import median, text

SECTION = "Cost of inbox.accept()"

# clients, synchronous_commit, ids per transaction
CONFIGURATIONS = [(4, "on", 1), (16, "on", 1), (4, "off", 1), (4, "off", 100)]
ROWS = 100000
SECONDS = (4, 2)

BEGIN = ("\\set id random(1, {rows})\n"
         "BEGIN{level};\n"
         "UPDATE orders SET total = total + 1 WHERE id = :id;\n")
ACCEPT = "SELECT inbox.accept('shop', gen_random_uuid());\n"
INSERT = ("INSERT INTO plain (source, id, accepted_at) VALUES ('shop', gen_random_uuid(), clock_timestamp())"
          " ON CONFLICT DO NOTHING;\n")
REPEATABLE = " ISOLATION LEVEL REPEATABLE READ"


def measure(bench):
    report = bench.report
    cluster = bench.cluster("inbox")
    sql = cluster.sql
    sql.rows("CREATE EXTENSION inbox")
    sql.rows("CREATE TABLE orders (id int PRIMARY KEY, total bigint) WITH (fillfactor = 50)")
    sql.rows(f"INSERT INTO orders SELECT i, 0 FROM generate_series(1, {ROWS}) AS i")
    sql.rows('CREATE TABLE plain (source text COLLATE "C", id uuid, accepted_at timestamptz NOT NULL,'
             " PRIMARY KEY (source, id))")
    sql.rows("VACUUM ANALYZE")
    seconds = bench.scale(*SECONDS)
    results = {}

    def one(configuration, name, statement, level=""):
        clients, commit, ids = configuration
        path = cluster.dir / f"{name}-{ids}.sql"
        path.write_text(BEGIN.format(rows=ROWS, level=level) + statement * ids + "END;\n")
        output = cluster.command(
            "pgbench", "-n", "-M", "prepared", "-f", path, "-c", clients, "-j", 2, "-T", seconds,
            "--max-tries", 10, cluster.conninfo() + f" options='-c synchronous_commit={commit}'")
        results.setdefault((*configuration, name), []).append(
            ids * float(re.search(r"tps = ([0-9.]+)", output)[1]))

    for _ in range(bench.repetitions):
        for configuration in CONFIGURATIONS:
            one(configuration, "insert", INSERT)
            one(configuration, "accept", ACCEPT)
        one(CONFIGURATIONS[0], "insert-repeatable", INSERT, REPEATABLE)
        one(CONFIGURATIONS[0], "accept-repeatable", ACCEPT, REPEATABLE)
    if sql.value("SELECT count(*) > 0 FROM inbox.accepted") != "t":
        raise AssertionError("accept() accepted nothing")

    for clients, commit, ids in CONFIGURATIONS:
        of = lambda name: results[clients, commit, ids, name]
        report.ratio(SECTION, f"{clients} clients, synchronous_commit {commit},"
                     f" {ids} id{'s' if ids > 1 else ''} a transaction: accepts ÷ INSERTs",
                     of("accept"), of("insert"))
    of = lambda name: results[(*CONFIGURATIONS[0], name)]
    report.ratio(SECTION, "4 clients, synchronous_commit on, REPEATABLE READ: accepts ÷ INSERTs",
                 of("accept-repeatable"), of("insert-repeatable"))

    # The server's own time: ids that are new, in one statement
    count = bench.scale(50000, 5000)
    times = {"accept": [], "insert": []}
    for _ in range(bench.repetitions):
        for name, statement in (("accept", "PERFORM inbox.accept('own', gen_random_uuid())"),
                                ("insert", INSERT.strip().rstrip(";"))):
            times[name].append(sql.number(
                f"DO $$ DECLARE begun timestamptz := clock_timestamp(); BEGIN FOR i IN 1 .. {count} LOOP {statement};"
                f" END LOOP; PERFORM set_config('bench.us', (extract(epoch FROM clock_timestamp() - begun) * 1e6 /"
                f" {count})::text, false); END $$;\nSELECT current_setting('bench.us')"))
    report.add(SECTION, "in one statement: a call, and an INSERT",
               f"{text(median(times['accept']))} µs, {text(median(times['insert']))} µs"
               f" ({median(times['accept']) / median(times['insert']):.1f} times)")
    size = [sql.number(f"SELECT pg_total_relation_size('{table}') / count(*)::float8 FROM {table}")
            for table in ("inbox.ids_1", "plain")]
    report.add(SECTION, "bytes for each id, with its index: inbox, plain table",
               f"{text(size[0])}, {text(size[1])}", counted=True)
    cluster.stop()
