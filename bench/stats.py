"""Whether outbox.stats answers in constant time, whatever lies behind."""
import threading
import time

from cluster import payload
from machine import wait_until
from report import median

SECTION = "Watching"
LOOKS = 50


def look(cluster):
    """Milliseconds of each look at outbox.stats, round trip included."""
    times = []
    for _ in range(LOOKS):
        begun = time.monotonic()
        cluster.sql.rows("SELECT * FROM outbox.stats")
        times.append((time.monotonic() - begun) * 1000)
    return times


def append(cluster, count):
    """Rows straight into the log, from two sessions."""
    def half(session, first, last):
        for start in range(first, last, 250000):
            session.rows("INSERT INTO outbox.events (topic, payload)"
                         f" SELECT 'bench.stats', {payload('i')}"
                         f" FROM generate_series({start}, {min(start + 250000, last) - 1}) AS i")
        session.close()

    threads = [threading.Thread(target=half, args=(cluster.session(), *part))
               for part in ((0, count // 2), (count // 2, count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(bench):
    count = bench.scale(10000000, 200000)
    cluster = bench.cluster("stats")
    for name in ("idle", "behind"):
        cluster.create_endpoint(name, bench.nginx.url(), ", topics => '{bench.stats}'"
                                if name == "behind" else ", topics => '{bench.other}'")
    cluster.pause("behind")
    cluster.settle(2)
    empty = look(cluster)
    begun = time.monotonic()
    append(cluster, count)
    seconds = time.monotonic() - begun
    wait_until(lambda: cluster.sql.value(
        "SELECT pending_exact AND pending = %d FROM outbox.stats WHERE endpoint = 'behind'"
        % count) == "t", 600, "the worker to have counted what waits")
    counted = time.monotonic() - begun
    full = look(cluster)
    cluster.check()
    cluster.stop()
    bench.report.at_most(
        SECTION, f"SELECT * FROM outbox.stats with {count:,} events waiting", full, "ms", 10,
        empty=empty, insert_seconds=seconds, counted_seconds=counted)
    bench.report.add(
        SECTION, "the same, beside an empty log",
        f"{median(full):.2f} ms beside {median(empty):.2f} ms", "within 1 ms or twice the time",
        median(full) <= max(2 * median(empty), median(empty) + 1))
    bench.report.add(
        SECTION, f"time until {count:,} new events are counted, from the first INSERT on",
        f"{counted:.0f} s, of which {seconds:.0f} s are the INSERTs")
