"""A source without the library and a follower: taking its events beside a plain subscription,
and emitting there beside a plain INSERT of the same row."""
import pathlib
import re
import time

from machine import wait_until
from report import text

SECTION = "Following a source"
EVENTS = (100000, 2000)
SECONDS = (5, 2)

# The columns and indexes of an event
PLAIN = """CREATE TABLE plain (id uuid, seq int8 NOT NULL DEFAULT nextval('plain_seq'), xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), topic text, key text, payload jsonb, PRIMARY KEY (id))"""
INDEXES = ("CREATE INDEX ON plain (xid)", "CREATE INDEX ON plain (seq)")


def measure(bench):
    report = bench.report
    source = bench.cluster("source", more="wal_level = logical\nmax_wal_size = 4GB\n")
    follower = bench.cluster("follower", more="max_wal_size = 4GB\nwal_retrieve_retry_interval = '100 ms'\n")
    events, seconds = bench.scale(*EVENTS), bench.scale(*SECONDS)
    source.sql.rows("CREATE DATABASE shop")
    shop = source.conninfo().replace("dbname=postgres", "dbname=shop")
    script = source.dir / "source.sql"
    script.write_text((pathlib.Path(__file__).resolve().parent.parent / "sql" / "source.sql").read_text())
    source.command("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", script, shop)

    def at_shop(sql):
        return source.command("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, shop).strip()

    for place in (at_shop, follower.sql.rows):
        for statement in ("CREATE SEQUENCE plain_seq", PLAIN, *INDEXES):
            place(statement)
    at_shop("CREATE PUBLICATION plain FOR TABLE plain WITH (publish = 'insert')")
    follower.sql.rows(f"SELECT outbox.follow('shop', '{shop}')")
    at_shop("SELECT pg_create_logical_replication_slot('plain', 'pgoutput')")
    follower.sql.rows(f"CREATE SUBSCRIPTION plain CONNECTION '{shop}' PUBLICATION plain"
                      " WITH (create_slot = false, slot_name = 'plain', copy_data = false)")

    # Rows of one transaction that are there when the subscription begins
    rates = {"events": [], "plain": []}
    ways = {"events": ("outbox_shop", "SELECT count(outbox.emit('bench.order', '{\"n\": 1}', key => 'k' || i % 100))",
                       "outbox.all_events"),
            "plain": ("plain", "INSERT INTO plain (id, topic, key, payload)"
                      " SELECT gen_random_uuid(), 'bench.order', 'k' || i % 100, '{\"n\": 1}'", "plain")}
    for _ in range(bench.repetitions):
        for name, (subscription, statement, table) in ways.items():
            before = int(follower.sql.number(f"SELECT count(*) FROM {table}"))
            follower.sql.rows(f"ALTER SUBSCRIPTION {subscription} DISABLE")
            wait_until(lambda: follower.sql.value(
                f"SELECT count(*) FROM pg_stat_subscription WHERE subname = '{subscription}' AND pid IS NOT NULL") == "0",
                30, "the subscription to stop")
            at_shop(f"{statement} FROM generate_series(1, {events}) i")
            follower.sql.rows(f"ALTER SUBSCRIPTION {subscription} ENABLE")
            begun = time.monotonic()
            wait_until(lambda: int(follower.sql.number(f"SELECT count(*) FROM {table}")) >= before + events, 300,
                       "the rows to arrive", every=0.01)
            rates[name].append(events / (time.monotonic() - begun))
    report.ratio(SECTION, f"{events:,} rows of one transaction: events taken ÷ rows of a plain subscription",
                 rates["events"], rates["plain"], at_least=0.6)

    tps = {"emit": [], "insert": []}
    scripts = {"emit": "SELECT outbox.emit('bench.order', '{\"n\": 1}'::jsonb, key => 'k');\n",
               "insert": "INSERT INTO plain (id, topic, key, payload) VALUES (gen_random_uuid(), 'bench.order', 'k', '{\"n\": 1}');\n"}
    for _ in range(bench.repetitions):
        for name, script in scripts.items():
            path = source.dir / f"{name}.sql"
            path.write_text(script)
            output = source.command("pgbench", "-n", "-M", "prepared", "-f", path, "-c", 4, "-j", 2, "-T", seconds, shop)
            tps[name].append(float(re.search(r"tps = ([0-9.]+)", output)[1]))
    report.ratio(SECTION, "4 clients, one row each: emit() at the source ÷ INSERT of the same row",
                 tps["emit"], tps["insert"], " tps", at_least=0.7)
    report.add(SECTION, "emits at the source", f"{text(max(tps['emit']))} tps")
    follower.sql.rows("SELECT outbox.unfollow('shop')")
    follower.sql.rows("DROP SUBSCRIPTION plain")
    follower.stop()
    source.stop()
