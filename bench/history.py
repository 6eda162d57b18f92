"""What a long past and a long transaction do to throughput and latency."""
from drain import drain
from latency import emit_at
from report import text

SECTION = "Long past, long transaction"


def long_past(bench):
    """Two clusters, one of them with millions of delivered events."""
    count = bench.scale(200000, 20000)
    behind = bench.scale(5000000, 100000)
    clusters = {"none": bench.cluster("none-behind"), "many": bench.cluster("many-behind")}
    many = clusters["many"]
    done = 0
    while done < behind:
        step = min(500000, behind - done)
        drain(bench, many, step)
        done += step
    for cluster in clusters.values():
        # Or autovacuum, which is late with what came in two minutes, does it
        # while some of the runs are measured.
        cluster.sql.rows("VACUUM ANALYZE")
        cluster.sql.rows("CHECKPOINT")
        cluster.settle(2)
    runs = {"none": [], "many": []}
    for _ in range(bench.repetitions):
        for name, cluster in clusters.items():
            runs[name].append(drain(bench, cluster, count))
    log_bytes = many.sql.value("SELECT pg_size_pretty(log_bytes) FROM outbox.status")
    for cluster in clusters.values():
        cluster.check()
        cluster.stop()
    bench.report.ratio(
        SECTION, f"deliveries/s with {behind:,} delivered events behind (a log of"
        f" {log_bytes}) ÷ with none", [r["per_s"] for r in runs["many"]],
        [r["per_s"] for r in runs["none"]], at_least=0.95, runs=runs)


def over_time(stamps, arrived, seconds, span):
    """Deliveries a second, p50 and p99 of each span, at its middle."""
    series = {"rate": [], "p50": [], "p99": []}
    for i in range(int(seconds / span)):
        at = (i + 0.5) * span
        p50, p99 = stamps.percentiles(1, i * span, (i + 1) * span)
        count = sum(1 for t in arrived if i * span <= t < (i + 1) * span)
        for name, value in (("rate", count / span), ("p50", p50), ("p99", p99)):
            series[name].append([at, value])
    return series


def long_transaction(bench):
    """A snapshot opened before everything else, and held."""
    rate, span = 800, bench.scale(60, 5)
    seconds = bench.scale(300, 15)
    cluster = bench.cluster("long-transaction")
    holder = cluster.session()
    holder.rows("BEGIN ISOLATION LEVEL REPEATABLE READ")
    holder.rows("SELECT pg_current_xact_id()")
    stamps = emit_at(bench, cluster, rate, seconds)
    dead = cluster.sql.value("SELECT sum(n_dead_tup) FROM pg_stat_all_tables"
                             " WHERE schemaname = 'outbox'")
    holder.rows("COMMIT")
    holder.close()
    cluster.check()
    cluster.stop()

    begun = stamps.events[0][0]
    arrived = sorted(e[0] + e[1] / 1000 - begun for e in stamps.events)
    first = sum(1 for at in arrived if at < span) / span
    last = sum(1 for at in arrived if seconds - span <= at < seconds) / span
    p50_first, p99_first = stamps.percentiles(1, 0, span)
    p50_last, p99_last = stamps.percentiles(1, seconds - span, seconds)
    bench.report.figures["held"] = over_time(stamps, arrived, seconds, span / 6)
    held = f"a REPEATABLE READ transaction held for {seconds} s at {rate} events/s, one run"
    bench.report.ratio(SECTION, f"{held}: deliveries/s of the last {span} s ÷ of the first",
                       [last], [first], at_least=0.95)
    bench.report.add(
        SECTION, f"… p50 and p99 of the first and of the last {span} s",
        f"{text(p50_first)} and {text(p99_first)} ms, then {text(p50_last)} and"
        f" {text(p99_last)} ms; {dead} dead tuples",
        "equal, within 25 % or 0.5 ms",
        p99_last <= max(p99_first * 1.25, p99_first + 0.5),
        first=[p50_first, p99_first], last=[p50_last, p99_last])


def measure(bench):
    long_past(bench)
    long_transaction(bench)
