#!/usr/bin/env python3
"""Does things at random, and compares every count of deliveries with the others.

    counts.py --socket DIR --port N --receiver URL --journal FILE [--steps N] [--seed N] [--kills]

It emits, retries, discards, replays, resends, cancels, seeks, pauses, alters, tests,
drops and forgets, while receivers answer well and badly.  At times it pauses all
endpoints, waits until nothing is under way, and compares: what the receiver counted
with outbox.stats, outbox.attempts and outbox.metrics(); outbox.stats with
outbox.deliveries, pages, dead letters and metrics; and, when workers have ended,
with outbox.figures() and outbox.tenant_usage().  With --kills workers end at any time.
"""

import argparse
import collections
import getpass
import json
import os
import random
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from producer import Session, SqlError      # pylint: disable=wrong-import-position

TENANTS = [None, "acme", "bolt"]
TOPICS = ["a.x", "a.y", "b.x"]
# A receiver that closes the connection may see one attempt twice.
BEHAVIOURS = ["/ok", "/ok", "/ok", "/fail?rate=0.4&status=500", "/status/500", "/status/404", "/slow?ms=30",
              "/partial?rate=0.3", "/status/429?retry_after=1", "/abort"]
# What waits in the worker behind an event of its key is pending for one, and processing for the other.
# Where dead letters of a strict endpoint are retried, and others block it, the rest is pending for one,
# and blocked for the other.
WAITS = ("pending + processing", "retrying", "blocked", "dead")
# Nothing is exact before the worker has heard of a pause.
RESTS = "state IN ('paused', 'disabled') AND processing = 0 AND pending_exact"
PATIENCE = 25               # seconds until counts that are a moment late must agree


def literal(value):
    return "NULL" if value is None else "'%s'" % value


class Endpoint:
    def __init__(self, name, tenant, path):
        self.name, self.tenant, self.path = name, tenant, path
        self.delivered = self.failed = 0    # what the receiver saw
        self.since = None                   # when its topics or filter last changed
        self.strict = False


class Counts:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.session = Session(options.socket, options.port, "postgres", getpass.getuser())
        self.journal = open(options.journal, encoding="utf-8")
        self.requests = {}          # of the receiver that wait for their answer
        self.endpoints = {}
        self.gone = []
        self.made = self.emitted = self.deduplicated = 0
        self.events = []
        self.done = collections.Counter()
        self.steps = open(options.journal + ".steps", "w", encoding="utf-8")

    def ask(self, sql):
        try:
            rows = self.session.query(sql)
        except SqlError as error:
            self.steps.write("%.3f %s -- %s\n" % (time.time(), sql, error))
            raise
        self.steps.write("%.3f %s -- %s\n" % (time.time(), sql, rows if len(str(rows)) < 1000 else "…"))
        return rows

    def one(self, sql):
        return self.ask(sql)[0][0]

    def may_fail(self, sql, *states):
        """A command that the present state may refuse."""
        try:
            return self.one(sql)
        except SqlError as error:
            if str(error).split(":")[0] not in states:
                raise
        return None

    # ------------------------------------------------------------- receiver

    def behave(self, endpoint, behaviour):
        url = "%s/control?path=%s&behave=%s" % (self.options.receiver, endpoint.path, urllib.request.quote(behaviour))
        urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"), timeout=30).read()

    def read_journal(self):
        for line in self.journal:
            line = json.loads(line)
            if "answer" in line:
                self.count(self.requests.pop(line["answer"]), line["status"], line.get("failed", []))
            elif line["status"] is not None:
                self.count(line, line["status"], line.get("failed", []))
            else:
                self.requests[line["request"]] = line

    def count(self, request, status, failed):
        for e in [*self.endpoints.values(), *self.gone]:
            if e.path == request["path"]:
                break
        for event in [b["id"] for b in request["batch"]] if "batch" in request else [request["id"]]:
            if 200 <= status < 300 and event not in failed:
                e.delivered += 1
            else:
                e.failed += 1

    # ---------------------------------------------------------------- steps

    def any_endpoint(self):
        return self.endpoints[self.random.choice(sorted(self.endpoints))]

    def create(self):
        if len(self.endpoints) >= 12:
            return
        self.made += 1
        name = "e%d" % self.made
        tenant = self.random.choice(TENANTS)
        e = Endpoint(name, tenant, "/ok/" + name)
        batch = self.random.random() < 0.3
        ordering = "none" if batch else self.random.choice(("key", "key", "none", "strict"))
        e.strict = ordering == "strict"
        self.behave(e, self.random.choice(BEHAVIOURS))
        self.ask("SELECT outbox.create_endpoint('%s', '%s%s', tenant => %s, topics => '{%s}', ordering => '%s',"
                 " on_exhausted => '%s', batch_size => %d, max_attempts => %s, max_in_flight => %d, start_at => '%s',"
                 " backoff_base => '20 ms', backoff_max => '300 ms', filter => %s)"
                 % (name, self.options.receiver, e.path, literal(tenant), self.random.choice(("*", "a.*", "*.x")),
                    ordering,
                    self.random.choice(("skip", "block")), 5 if batch else 1, self.random.choice(("NULL", "1", "2", "3")),
                    self.random.choice((1, 4, 32)), self.random.choice(("now", "now", "beginning")),
                    self.random.choice(("NULL", "NULL", "'$.n % 2 == 0'", "'$.n > \"x\"'"))))
        e.since = self.one("SELECT created_at FROM outbox.endpoints WHERE name = '%s'" % name)
        self.endpoints[name] = e

    def emit(self):
        self.ask("BEGIN")
        for _ in range(self.random.randint(1, 8)):
            more = ""
            if self.random.random() < 0.1:
                more += ", deliver_at => clock_timestamp() + interval '%d ms'" % self.random.choice((1, 300, 3600000))
            if self.random.random() < 0.1:
                more += ", expires_at => clock_timestamp() + interval '%d ms'" % self.random.choice((3700000, 7200000))
            elif "deliver_at" not in more and self.random.random() < 0.1:
                more += ", expires_at => clock_timestamp() + interval '50 ms'"
            self.emitted += 1
            self.events.append(self.one(
                "SELECT outbox.emit('%s', '{\"n\": %d}', key => %s, tenant => %s%s)"
                % (self.random.choice(TOPICS), self.emitted, self.random.choice(("NULL", "'k1'", "'k2'", "'k3'")),
                   literal(self.random.choice(TENANTS)), more)))
        self.ask("COMMIT")

    def change_behaviour(self):
        self.behave(self.any_endpoint(), self.random.choice(BEHAVIOURS))

    def some(self):
        return self.random.choice(("", "", ", topics => '{a.*}'", ", event => '%s'" % self.random.choice(self.events[-40:]),
                                   ", since => clock_timestamp() - interval '2 s'"))

    def retry(self):
        self.one("SELECT outbox.retry('%s'%s)" % (self.any_endpoint().name, self.some()))

    def discard(self):
        self.one("SELECT outbox.discard('%s'%s)" % (self.any_endpoint().name, self.some()))

    def resend(self):
        self.may_fail("SELECT outbox.resend('%s', '%s')"
                      % (self.any_endpoint().name, self.random.choice(self.events[-60:])), "55000", "42704")

    def cancel(self):
        which = self.any_endpoint().name if self.random.random() < 0.5 else None
        self.may_fail("SELECT outbox.cancel('%s', %s)" % (self.random.choice(self.events[-20:]), literal(which)),
                      "55000", "42704")

    def replay(self):
        """Only events that it subscribed to when they were emitted: outbox.deliveries shows no others."""
        e = self.any_endpoint()
        self.one("SELECT outbox.replay('%s', GREATEST('%s', clock_timestamp() - interval '%d s'), clock_timestamp())"
                 % (e.name, e.since, self.random.choice((1, 5, 3600))))

    def cancel_replay(self):
        rows = self.ask("SELECT endpoint, replay_id FROM outbox.replay_progress WHERE finished_at IS NULL ORDER BY replay_id LIMIT 1")
        for name, replay in rows:
            self.one("SELECT outbox.cancel_replay('%s', %s)" % (name, replay))

    def seek(self):
        self.one("SELECT outbox.seek_endpoint('%s', %s)"
                 % (self.any_endpoint().name, self.random.choice(("'now'", "'beginning'", "clock_timestamp() - interval '3 s'"))))

    def pause(self):
        self.one("SELECT outbox.pause_endpoint('%s')" % self.any_endpoint().name)

    def resume(self):
        self.one("SELECT outbox.resume_endpoint('%s')" % self.any_endpoint().name)

    def alter(self):
        e = self.any_endpoint()
        self.one("SELECT outbox.alter_endpoint('%s', %s)" % (e.name, self.random.choice((
            "max_attempts => 2", "reset => '{max_attempts}'", "on_exhausted => 'skip'", "on_exhausted => 'block'",
            "topics => '{a.*}'", "topics => '{*}'", "max_in_flight => 2", "filter => '$.n % 3 == 0'", "reset => '{filter}'"))))
        e.since = self.one("SELECT clock_timestamp()")

    def send_test(self):
        self.may_fail("SELECT outbox.send_test('%s')" % self.any_endpoint().name, "54000")

    def leave(self, endpoints):
        """A request may be broken off, and counts as failed then.  So all have ended before."""
        for e in endpoints:
            self.one("SELECT outbox.pause_endpoint('%s')" % e.name)
            self.wait("it rests", "SELECT %s FROM outbox.stats WHERE endpoint = '%s'" % (RESTS, e.name))
            del self.endpoints[e.name]
            self.gone.append(e)

    def drop(self):
        if len(self.endpoints) > 3:
            e = self.any_endpoint()
            self.leave([e])
            self.one("SELECT outbox.drop_endpoint('%s', discard => true)" % e.name)

    def forget(self):
        tenant = self.random.choice(TENANTS[1:])
        if self.random.random() < 0.6:
            self.may_fail("SELECT outbox.forget('%s', 'k%d')" % (tenant, self.random.randint(1, 3)), "42704")
            return
        self.leave([e for e in self.endpoints.values() if e.tenant == tenant])
        self.may_fail("SELECT outbox.forget('%s')" % tenant, "42704")
        while len(self.endpoints) < 3:
            self.create()

    def end_workers(self):
        self.ask("SELECT pg_terminate_backend(pid) FROM outbox.workers WHERE pid IS NOT NULL")

    def workers(self):
        self.ask("ALTER SYSTEM SET outbox.workers_per_database = %d" % self.random.randint(1, 3))
        self.ask("SELECT pg_reload_conf()")

    def rest(self):
        time.sleep(self.random.choice((0.01, 0.05, 0.2)))

    STEPS = [(emit, 40), (change_behaviour, 12), (create, 4), (retry, 6), (discard, 4), (resend, 6), (cancel, 6), (replay, 4),
             (cancel_replay, 2), (seek, 3), (pause, 4), (resume, 8), (alter, 5), (send_test, 4), (drop, 1), (forget, 1), (rest, 25)]
    KILLS = [(end_workers, 2), (workers, 1)]

    # -------------------------------------------------------------- compare

    def wait(self, what, sql):
        until = time.monotonic() + PATIENCE
        while self.one(sql) != "t":
            if time.monotonic() > until:
                raise AssertionError("%s: %s" % (what, sql))
            time.sleep(0.05)

    def settle(self):
        """Nothing is under way, and nothing begins."""
        for name in self.endpoints:
            self.one("SELECT outbox.pause_endpoint('%s')" % name)
        self.wait("they rest", "SELECT bool_and(%s) FROM outbox.stats" % RESTS)
        self.wait("commands", "SELECT NOT EXISTS (SELECT FROM outbox.commands WHERE retry_at IS NULL)")
        self.wait("forgets", "SELECT NOT EXISTS (SELECT FROM outbox.forget_progress WHERE complete_at IS NULL)")
        self.wait("nothing is set aside", "SELECT NOT EXISTS (SELECT FROM outbox.set_aside) AND NOT EXISTS (SELECT FROM outbox.held_steps)")
        self.wait("due", "SELECT NOT EXISTS (SELECT FROM outbox.scheduled WHERE deliver_at < clock_timestamp() + interval '1 min')")

    def agree(self, what, look):
        """Both sides, until they are equal."""
        until = time.monotonic() + PATIENCE
        while True:
            one, other = look()
            if one == other:
                return
            if time.monotonic() > until:
                keys = sorted(set(one) | set(other)) if isinstance(one, dict) else [None]
                raise AssertionError("%s: %s" % (what, "; ".join(
                    "%s: %s, and not %s" % (k, one.get(k), other.get(k)) for k in keys if one.get(k) != other.get(k))
                    if keys != [None] else "%s, and not %s" % (one, other)))
            time.sleep(0.2)

    def stats(self, *columns):
        return {row[0]: tuple(int(n) for n in row[1:])
                for row in self.ask("SELECT endpoint, %s FROM outbox.stats" % ", ".join(columns))}

    def waiting(self, rows):
        """Counts of WAITS, as they are compared."""
        return {name: (p + b, r, 0, d) if self.endpoints[name].strict else (p, r, b, d) for name, (p, r, b, d) in rows.items()}

    def seen(self):
        self.read_journal()
        return {e.name: (e.delivered, e.failed) for e in self.endpoints.values()}

    def sums(self, name):
        return {endpoint: int(float(value)) for endpoint, value in self.ask(
            "SELECT labels ->> 'endpoint', sum(value) FROM outbox.metrics(100) WHERE name = '%s' GROUP BY 1" % name)}

    def waits_in_views(self):
        rows = self.ask("SELECT endpoint, CASE WHEN status IN ('pending', 'processing') THEN 'pending + processing' ELSE status END,"
                        " count(*) FROM outbox.deliveries WHERE seq IS NOT NULL GROUP BY 1, 2")
        shown = {name: dict.fromkeys(WAITS, 0) for name in self.endpoints}
        for name, status, n in rows:
            if status in WAITS:
                shown[name][status] += int(n)
        return {name: tuple(s[w] for w in WAITS) for name, s in shown.items()}

    def pages(self, name):
        """All pages of an endpoint, as one list."""
        rows, cursor = [], None
        while True:
            page = self.ask("SELECT event_id, status, attempts, reason, cursor FROM outbox.deliveries_page('%s', page_size => 100, before => %s)"
                            % (name, literal(cursor)))
            if not page:
                return sorted(map(str, rows))
            rows += [r[:4] for r in page if r[0] is not None]
            cursor = page[-1][4]

    def check(self, resume=True):
        self.settle()
        # what the receiver saw
        if not self.options.kills:
            self.agree("receiver and stats", lambda: (self.seen(), self.stats("delivered", "failed_attempts")))
            self.agree("receiver and attempts", lambda: (
                {n: c for n, c in self.seen().items() if c != (0, 0)},
                {r[0]: (int(r[1]), int(r[2])) for r in self.ask(
                    "SELECT endpoint, count(*) FILTER (WHERE error IS NULL), count(error) FROM outbox.attempts"
                    " WHERE endpoint IS NOT NULL GROUP BY 1")}))
        # stats and what is there
        self.agree("stats and deliveries", lambda: (self.waiting(self.stats(*WAITS)), self.waiting(self.waits_in_views())))
        self.agree("stats and dead letters", lambda: (
            {n: c for n, (c,) in self.stats("dead").items() if c},
            {r[0]: int(r[1]) for r in self.ask("SELECT endpoint, count(*) FROM outbox.dead_letters GROUP BY 1")}))
        self.agree("exact", lambda: ({}, {r[0]: r[1:] for r in self.ask(
            "SELECT endpoint, pending, pending_exact, state FROM outbox.stats WHERE NOT pending_exact")}))
        for name in self.endpoints:
            self.agree("pages of " + name, lambda: (self.pages(name), sorted(map(str, self.ask(
                "SELECT event_id, status, attempts, reason FROM outbox.deliveries WHERE endpoint = '%s' AND seq IS NOT NULL" % name)))))
        # metrics
        self.agree("stats and metrics", lambda: (
            {n: c[0] for n, c in self.stats("delivered").items()}, self.sums("outbox_endpoint_delivered_total")))
        self.agree("stats and metrics, failed", lambda: (
            {n: c[0] for n, c in self.stats("failed_attempts").items() if c[0]},
            {n: c for n, c in self.sums("outbox_endpoint_failed_attempts_total").items() if c}))
        # What waits where nothing is sent has a status of its own.
        sent = "CASE WHEN state IN ('active', 'backing_off') THEN %s ELSE %s END"
        for status, n in [("stopped", sent % (0, "pending + retrying + blocked")), ("processing", "processing"), ("dead", "dead"),
                          *((w, sent % (w, 0)) for w in ("pending", "retrying", "blocked"))]:
            self.agree("metrics: " + status, lambda: (
                sum(c[0] for c in self.stats(n).values()),
                int(float(self.one("SELECT sum(value) FROM outbox.metrics() WHERE name = 'outbox_deliveries' AND labels ->> 'status' = '%s'" % status) or 0))))
        if not self.options.kills:
            everyone = [*self.endpoints.values(), *self.gone]
            self.agree("metrics: all", lambda: (
                (sum(e.delivered for e in everyone), sum(e.failed for e in everyone)),
                (self.sums("outbox_delivered_total").get(None, 0), self.sums("outbox_failed_attempts_total").get(None, 0))))
        self.portal()
        for name in self.endpoints if resume else ():
            if self.random.random() < 0.9:
                self.one("SELECT outbox.resume_endpoint('%s')" % name)

    def portal(self):
        columns = ("pending", "retrying", "blocked", "dead", "delivered", "failed_attempts")
        for tenant in TENANTS[1:]:
            self.agree("portal of " + tenant, lambda: (
                {j["name"]: tuple(j[c] for c in columns)
                 for j in (json.loads(r[0]) for r in self.ask("SELECT outbox.portal_endpoints('%s')" % tenant))},
                {n: c for n, c in self.stats(*columns).items() if self.endpoints[n].tenant == tenant}))

    def figures(self):
        """Once all workers have ended, open buckets are written.  All endpoints rest already."""
        self.end_workers()
        everyone = [*self.endpoints.values(), *self.gone]
        self.read_journal()
        until = "from_time => now() - interval '1 day', to_time => now() + interval '1 hour'"
        self.agree("figures", lambda: (
            {e.name: (e.delivered, e.failed) for e in self.endpoints.values()},
            {e.name: self.figure("SELECT outbox.figures('%s', %s)" % (e.name, until)) for e in self.endpoints.values()}))
        self.agree("figures of all", lambda: (
            (sum(e.delivered for e in everyone), sum(e.failed for e in everyone)), self.figure("SELECT outbox.figures(%s)" % until)))
        for tenant in TENANTS[1:]:
            mine = [e for e in everyone if e.tenant == tenant]
            both = (sum(e.delivered for e in mine), sum(e.failed for e in mine))
            self.agree("usage of " + tenant, lambda: (both, tuple(map(int, (self.ask(
                "SELECT delivered, failed_attempts FROM outbox.tenant_usage(now() - interval '1 day', now() + interval '1 hour')"
                " WHERE tenant = '%s'" % tenant) or [(0, 0)])[0]))))

    def figure(self, sql):
        rows = [json.loads(r[0]) for r in self.ask(sql)]
        return sum(r["delivered"] for r in rows), sum(r["failed_attempts"] for r in rows)

    # ------------------------------------------------------------------ run

    def run(self):
        for _ in range(5):
            self.create()
        steps, weights = zip(*(self.STEPS + (self.KILLS if self.options.kills else [])))
        self.emit()
        for number in range(self.options.steps):
            do = self.random.choices(steps, weights)[0]
            try:
                do(self)
                self.done[do.__name__] += 1
                if number % 75 == 74:
                    self.check()
            except AssertionError as error:
                if os.environ.get("HOLD"):
                    print("HELD", number, error, flush=True)
                    while not os.path.exists(os.environ["HOLD"]):
                        time.sleep(1)
                sys.exit("step %d: %s" % (number, error))
            except (SqlError, ConnectionError) as error:
                sys.exit("step %d, %s: %s" % (number, do.__name__, error))
        try:
            self.check(resume=False)
            if not self.options.kills:
                self.figures()
        except AssertionError as error:
            sys.exit("at the end: %s" % error)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--receiver", required=True)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", action="store_true")
    counts = Counts(parser.parse_args())
    counts.run()
    print(", ".join("%d x %s" % (n, what) for what, n in sorted(counts.done.items())))
    everyone = [*counts.endpoints.values(), *counts.gone]
    print("%d deliveries and %d failures were counted" % (sum(e.delivered for e in everyone), sum(e.failed for e in everyone)))


if __name__ == "__main__":
    main()
