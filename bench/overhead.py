"""What emit() costs the transaction that calls it, beside a plain INSERT into a
table of the same columns and indexes, and beside nothing.

With an endpoint, the requests are made on the same machine: where pgbench keeps
all cores busy, they take their share of them, whoever causes them.  So the
INSERT is measured once more while as many requests a second go out, of events
that had been waiting: the difference that is left is emit()'s."""
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
SECONDS = (4, 2)

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

    seconds = bench.scale(*SECONDS)
    results, kept_up, cpu = {}, {}, {}
    def delivering(before):
        """Deliveries a second, and the worker's CPU in each of them (µs)."""
        delivered = int(sql.value("SELECT delivered FROM outbox.stats"
                                  " WHERE endpoint = 'bench'"))
        return delivered / seconds, (cluster.worker_cpu() - before) * 1e6 / max(delivered, 1)

    def one(configuration, name, statement, deliver=None):
        """'deliver': None, 'emitted', or that many waiting events a second."""
        clients, commit, events = configuration
        path = script(name.split()[0], events, statement)
        if deliver:
            cluster.create_endpoint("bench", bench.nginx.url())
        if isinstance(deliver, float):
            sql.rows("SELECT outbox.pause_endpoint('bench')")
            cluster.emit(int(deliver * seconds * 1.5))
            sql.rows(f"SELECT outbox.alter_endpoint('bench', rate_limit => {deliver:.0f})")
            sql.rows("SELECT outbox.resume_endpoint('bench')")
        before = cluster.worker_cpu()
        rate = tps(bench, cluster, path, clients, commit)
        results.setdefault((*configuration, name), []).append(rate)
        if deliver:
            done, each = delivering(before)
            kept_up.setdefault((*configuration, name), []).append(done)
            cpu.setdefault((*configuration, name), []).append(each)
            cluster.drop_endpoint("bench")
        cluster.settle(0.5)

    for _ in range(bench.repetitions):
        for configuration in CONFIGURATIONS:
            before = sql.value("SELECT last_value FROM plain_seq")
            one(configuration, "nothing", "")
            one(configuration, "insert", INSERT)
            if sql.value("SELECT last_value FROM plain_seq") == before:
                raise AssertionError("the plain INSERT inserted nothing")
            one(configuration, "emit", EMIT)
            one(configuration, "emit to one endpoint", EMIT, "emitted")
            one(configuration, "insert beside deliveries", INSERT,
                kept_up[(*configuration, "emit to one endpoint")][-1])
    cluster.check()
    cluster.stop()

    for clients, commit, events in CONFIGURATIONS:
        of = lambda name: results[clients, commit, events, name]
        words = (f"{clients} clients, synchronous_commit {commit},"
                 f" {events} event{'s' if events > 1 else ''} a transaction")
        report.ratio(SECTION, f"{words}: transactions/s with emit ÷ with INSERT",
                     of("emit"), of("insert"), at_least=0.95)
        live, beside = "emit to one endpoint", "insert beside deliveries"
        rates = [median(kept_up[clients, commit, events, name]) for name in (live, beside)]
        costs = [median(cpu[clients, commit, events, name]) for name in (live, beside)]
        report.ratio(SECTION, f"… and with an endpoint that receives them ({text(rates[0])}/s)"
                     f" ÷ INSERT while as many requests go out ({text(rates[1])}/s)",
                     of(live), of(beside), at_least=0.95)
        report.add(SECTION, "… ÷ INSERT while nothing goes out",
                   f"{median(of(live)) / median(of('insert')):.2f}; the worker took"
                   f" {text(costs[0])} µs a delivery ({text(costs[1])} µs of waiting ones)")
        report.add(SECTION, "… ÷ the same transaction without an event",
                   f"{median(of('emit')) / median(of('nothing')):.2f}"
                   f" ({text(median(of('nothing')))}/s);"
                   f" INSERT {median(of('insert')) / median(of('nothing')):.2f}",
                   nothing=of("nothing"))
