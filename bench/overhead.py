"""What emit() costs the transaction that calls it, beside a plain INSERT into a
table of the same columns and indexes, and beside nothing."""
import re

from cluster import payload
from report import median, text

SECTION = "Cost of emit()"

# clients, synchronous_commit, events per transaction
CONFIGURATIONS = [
    (4, "on", 1), (16, "on", 1), (4, "off", 1), (16, "off", 1),
    (4, "on", 100), (16, "on", 100),
]
ROWS = 100000
SECONDS = (6, 2)

UPDATE = ("\\set id random(1, {rows})\n"
          "BEGIN;\n"
          "UPDATE orders SET total = total + 1 WHERE id = :id;\n")
EMIT = "SELECT outbox.emit('bench.order', {payload});\n"
INSERT = "INSERT INTO plain (topic, payload) VALUES ('bench.order', {payload});\n"


def make_plain_table(sql):
    """A table like the piece of the log that events go to, filled with values of
    the same kind.  The ids too: random ones would scatter over the index, and
    make emit() look better than it is."""
    leaf = sql.value("SELECT tableoid::regclass FROM outbox.events LIMIT 1")
    sql.rows(f"CREATE TABLE plain (LIKE {leaf} INCLUDING INDEXES INCLUDING STORAGE)")
    sql.rows("CREATE SEQUENCE plain_seq")
    columns = dict(sql.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'plain'::regclass AND attnum > 0 AND NOT attisdropped"))
    defaults = {
        "id": "outbox.new_event_id()", "seq": "nextval('plain_seq')",
        "xid": "pg_current_xact_id()", "created_at": "clock_timestamp()",
    }
    for column in columns:
        if column in defaults:
            sql.rows(f"ALTER TABLE plain ALTER {column} SET DEFAULT {defaults[column]}")
        elif column not in ("topic", "payload"):
            # The log fills its own columns; the plain table stores as much.
            value = sql.value(f"SELECT {column}::text FROM outbox.events LIMIT 1")
            if value:
                sql.rows(f"ALTER TABLE plain ALTER {column} SET DEFAULT"
                         f" '{value}'::{columns[column]}")


def tps(bench, cluster, script, clients, commit):
    output = cluster.command(
        "pgbench", "-n", "-M", "prepared", "-f", script, "-c", clients, "-j", 2,
        "-T", bench.scale(*SECONDS),
        cluster.conninfo() + f" options='-c synchronous_commit={commit}'")
    return float(re.search(r"tps = ([0-9.]+)", output)[1])


def measure(bench):
    report = bench.report
    cluster = bench.cluster("overhead")
    sql = cluster.sql
    sql.rows("CREATE TABLE orders (id int PRIMARY KEY, total bigint) WITH (fillfactor = 50)")
    sql.rows(f"INSERT INTO orders SELECT i, 0 FROM generate_series(1, {ROWS}) AS i")
    cluster.emit(1)
    make_plain_table(sql)
    sql.rows("VACUUM ANALYZE")
    sql.rows("CHECKPOINT")

    def script(name, events, statement):
        path = cluster.dir / f"{name}-{events}.sql"
        path.write_text(UPDATE.format(rows=ROWS)
                        + statement.format(payload=payload(":id")) * events + "END;\n")
        return path

    results, kept_up = {}, {}
    variants = [("nothing", "", None), ("insert", INSERT, None), ("emit", EMIT, None),
                ("emit to one endpoint", EMIT, "bench")]
    for _ in range(bench.repetitions):
        for clients, commit, events in CONFIGURATIONS:
            for name, statement, endpoint in variants:
                if endpoint:
                    cluster.create_endpoint(endpoint, bench.nginx.url())
                before = sql.value("SELECT last_value FROM plain_seq")
                path = script(name.split()[0], events, statement)
                rate = tps(bench, cluster, path, clients, commit)
                results.setdefault((clients, commit, events, name), []).append(rate)
                if endpoint:
                    # What was delivered by then says whether it kept up.
                    delivered = int(sql.value("SELECT delivered FROM outbox.stats"
                                              f" WHERE endpoint = '{endpoint}'"))
                    kept_up.setdefault((clients, commit, events), []).append(
                        delivered / (rate * events * bench.scale(*SECONDS)))
                    cluster.drop_endpoint(endpoint)
                if name == "insert" and sql.value("SELECT last_value FROM plain_seq") == before:
                    raise AssertionError("the plain INSERT inserted nothing")
                cluster.settle(0.5)
    cluster.check()
    cluster.stop()

    for clients, commit, events in CONFIGURATIONS:
        of = lambda name: results[clients, commit, events, name]
        words = (f"{clients} clients, synchronous_commit {commit},"
                 f" {events} event{'s' if events > 1 else ''} a transaction")
        report.ratio(SECTION, f"{words}: transactions/s with emit ÷ with INSERT",
                     of("emit"), of("insert"), at_least=0.95)
        share = median(kept_up[clients, commit, events])
        report.ratio(SECTION, "… and with an endpoint that receives them meanwhile"
                     f" ({min(share, 1):.0%} were delivered at the end) ÷ INSERT",
                     of("emit to one endpoint"), of("insert"), at_least=0.95)
        report.add(SECTION, "… ÷ the same transaction without an event",
                   f"{median(of('emit')) / median(of('nothing')):.2f}"
                   f" ({text(median(of('nothing')))}/s);"
                   f" INSERT {median(of('insert')) / median(of('nothing')):.2f}",
                   nothing=of("nothing"))
