"""A source without the library and a follower: taking its events beside a plain subscription,
emitting there beside a plain INSERT of the same row, the way to the receiver, and CPU."""
import pathlib
import re
import time
import types

from latency import EMIT, Stamps, run_emitter
from machine import cpu_seconds, wait_until
from receivers import Receiver
from report import median, text

SECTION = "Following a source"
EVENTS = (100000, 2000)
SECONDS = (3, 2)

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
    follower.sql.rows("DROP SUBSCRIPTION plain")
    to_receiver(bench, shop, follower)
    cpu(bench, source, shop, follower, at_shop)
    follower.stop()
    source.stop()


def to_receiver(bench, shop, follower):
    """From the commit at the source to the receiver, at 1,000 events/s."""
    received, committed = [], []
    for _ in range(bench.repetitions):
        receiver = Receiver(bench.machine, record=True)
        follower.create_endpoint("latency", receiver.url(), ", topics => '{bench.latency}'")
        follower.settle(0.5)
        seconds = bench.scale(10, 5)
        out = run_emitter(bench, types.SimpleNamespace(conninfo=lambda: shop), 1000, seconds, EMIT)
        follower.wait_delivered("latency", 1000 * seconds)
        follower.drop_endpoint("latency")
        stamps = Stamps(out, receiver.arrivals()[0], None)
        received.append(stamps.percentiles(1))
        committed.append(stamps.percentiles(3))
    for i, (name, limit) in enumerate([("p50", 2), ("p99", 10)]):
        value = median(c[i] for c in committed)
        bench.report.add(SECTION, f"1,000 events/s, commit reported at the source → receiver, {name}",
                         f"**{text(value)} ms**; emit → receiver, {name}: {text(median(r[i] for r in received))} ms",
                         f"≤ {limit} ms", value <= limit, value=value, samples=[c[i] for c in committed])


def cpu(bench, source, shop, follower, at_shop):
    """What the source pays for each event beyond its emit, and what each of two followers pays for its half."""
    events = bench.scale(*EVENTS)
    script = source.dir / "cpu.sql"

    def delivered():
        return sum(f.sql.number("SELECT delivered FROM outbox.stats") for f in followers)

    def emit(each, events=events):
        """Emits so many events, in transactions of so many; the CPU of each process that sends, and of each server that follows."""
        script.write_text("SELECT count(outbox.emit('bench.cpu', '{\"n\": 1}'::jsonb, key => 'k' || (random() * 1000000)::int4))"
                          f" FROM generate_series(1, {each}) i;\n")
        senders = [int(pid) for pid in at_shop("SELECT active_pid FROM pg_replication_slots WHERE active AND slot_name ~ '^outbox_'").split()]
        count = delivered() + events
        before = [cpu_seconds(pid) for pid in senders], [following_cpu(f) for f in followers]
        source.command("pgbench", "-n", "-f", script, "-c", 2, "-t", events // each // 2, shop)
        wait_until(lambda: delivered() >= count, 300, "all to be delivered", every=0.2)
        return ([(cpu_seconds(pid) - was) * 1e6 / events for pid, was in zip(senders, before[0])],
                [following_cpu(f) - was for f, was in zip(followers, before[1])])

    def following_cpu(cluster):
        return cluster.worker_cpu() + cpu_seconds(int(wait_until(
            lambda: cluster.sql.value("SELECT pid FROM pg_stat_subscription WHERE pid IS NOT NULL"), 30, "the subscription")))

    followers = [follower]
    follower.create_endpoint("cpu", bench.nginx.url(), ", topics => '{bench.cpu}', ordering => 'none'")
    emit(100)		# the first of everything
    one = [emit(100) for _ in range(bench.repetitions)]
    single = [emit(1, events // 10) for _ in range(bench.repetitions)]
    whole = median(emit(1000)[1][0] for _ in range(bench.repetitions))
    report = bench.report
    report.at_most(SECTION, "100 events a transaction: CPU of the process that sends, of each", [s[0] for s, _ in one], "µs", 5)
    report.at_most(SECTION, "single events: the same", [s[0] for s, _ in single], "µs")

    follower.sql.rows("SELECT outbox.unfollow('shop')")
    at_shop("TRUNCATE outbox.emitted; SELECT outbox.divide(2)")
    followers.append(bench.cluster("follower2", more="max_wal_size = 4GB\nwal_retrieve_retry_interval = '100 ms'\n"))
    followers[1].create_endpoint("cpu", bench.nginx.url(), ", topics => '{bench.cpu}', ordering => 'none'")
    for i, f in enumerate(followers):
        f.sql.rows(f"SELECT outbox.follow('shop', '{shop}', publication => 'outbox_{i + 1}_of_2')")
    emit(1000)
    halves = [emit(1000)[1] for _ in range(bench.repetitions)]
    shares = [median(h[i] for h in halves) / whole for i in (0, 1)]
    report.add(SECTION, "1,000 events a transaction, two followers with a share each: CPU of each, of that of one with all",
               " and ".join(f"**{share:.2f}**" for share in shares), "0.45 to 0.55", all(0.45 <= s <= 0.55 for s in shares),
               shares=shares, halves=halves, whole=whole)
    followers[1].stop()
