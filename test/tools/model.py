#!/usr/bin/env python3
"""Does things at random, one after the other, and knows who must get what.

    model.py --socket DIR --port N --url URL --log FILE [--steps N] [--seed N]

It emits events of several tenants and of none, in two sessions, one of which keeps
its transaction open over other steps.  It creates, alters, pauses, resumes, seeks
forth and back, drops and forgets, changes the number of workers, and kills them.  For
each event it keeps the endpoints that must get it, and those that may: an endpoint that
was altered or dropped before it had the event.  It also keeps which must get it again.

At the end it waits until everything is delivered.  It writes FILE, FILE.dead,
FILE.skipped, FILE.again, FILE.deaths and FILE.endpoints for check_history.py, and all along
FILE.steps.  The first has what each endpoint must get, so that one that gets an event of
another tenant is found.
"""

import argparse
import collections
import getpass
import json
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from producer import Session, SqlError      # pylint: disable=wrong-import-position

TENANTS = [None, "acme", "acme.de", "bolt", "c o\u00fc"]
SEGMENTS = ["a", "b", "c"]
PATTERNS = ["*", "a.*", "b.*", "a.b", "*.c", "a.*.c", "c.a.*"]
MOST_ENDPOINTS = 24
SLACK = 2                   # seconds for which the word of a death may wait


def literal(value):
    return "NULL" if value is None else "'%s'" % value.replace("'", "''")


def matches(pattern, topic):
    """As sql-reference.md says of create_endpoint's topics."""
    p, t = pattern.split("."), topic.split(".")
    if p[-1] == "*" and len(t) > len(p):
        t = t[:len(p)]
    return len(p) == len(t) and all(a in ("*", b) for a, b in zip(p, t))


class Endpoint:
    def __init__(self, name, path, tenant, patterns, divisor):
        self.name, self.path, self.tenant = name, path, tenant
        self.patterns, self.divisor = patterns, divisor     # divisor None: no filter
        self.paused = False

    def wants(self, event):
        return ((self.tenant is None or self.tenant == event["tenant"])
                and any(matches(p, event["topic"]) for p in self.patterns)
                and (self.divisor is None or event["n"] % self.divisor == 0))

    def settings(self):
        said = "topics => '{%s}'" % ",".join(self.patterns)
        if self.divisor is not None:
            said += ", filter => '$.n %% %d == 0'" % self.divisor
        return said


class Model:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.endpoints = {}             # by name, those that are there
        self.dropped = []
        self.made = 0
        self.events = []                # committed, oldest first
        self.rolled_back = []
        self.number = collections.Counter()     # last "n" of each key
        self.deaths = []
        self.again = []                 # (path, id, when it was asked for; None: it need not come)
        self.skipped = set()            # (path, id): owed after it was not
        self.done = collections.Counter()
        self.steps = open(options.log + ".steps", "w", encoding="utf-8")
        self.session = self.connect()
        self.other = self.connect()
        self.open = None                # events of the other session's transaction
        self.forgets = self.ask("SELECT to_regprocedure('outbox.forget(text)') IS NOT NULL")[0][0] == "t"

    def connect(self):
        until = time.monotonic() + 120
        while True:
            try:
                return Session(self.options.socket, self.options.port, "postgres", getpass.getuser())
            except (ConnectionError, FileNotFoundError, SqlError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)        # until the server takes connections again

    def ask(self, sql, session=None):
        rows = (session or self.session).query(sql)
        self.steps.write("%.6f %s %s %s\n" % (time.time(), "other" if session is self.other else "", sql, rows))
        return rows

    def wait(self, sql):
        """Until the query yields true, as long as deliveries are made meanwhile: an endpoint that began at
        the beginning may have much to get, and each event fails once."""
        left = None
        while self.ask(sql)[0][0] != "t":
            now = self.ask("SELECT sum(pending + processing + retrying + blocked) FROM outbox.stats")
            if now != left:
                left, until = now, time.monotonic() + 120
            if time.monotonic() > until:
                raise TimeoutError(sql)
            time.sleep(0.1)

    # ---------------------------------------------------------------- events

    def emit(self, session, which):
        event = {"tenant": self.random.choice(TENANTS),
                 "topic": ".".join(self.random.choice(SEGMENTS) for _ in range(self.random.randint(1, 3)))}
        key = None
        if self.random.random() < 0.8:
            key = "%s%d" % (which, self.random.randrange(4))
            event["key"] = "%s|%s" % (event["tenant"], key)
        self.number[event.get("key")] += 1
        event["n"] = self.number[event.get("key")]
        event["id"] = self.ask(
            "SELECT outbox.emit('%s', '{\"n\": %d}', key => %s, tenant => %s)"
            % (event["topic"], event["n"], literal(key), literal(event["tenant"])), session)[0][0]
        return event

    def committed(self, events):
        for event in events:
            event["must"] = {e.path for e in self.endpoints.values() if e.wants(event)}
            event["may"] = {e.path for e in self.dropped if e.wants(event)}
        self.events.extend(events)

    def transaction(self):
        events = []
        self.ask("BEGIN")
        for _ in range(self.random.randint(1, 12)):
            if self.random.random() < 0.1:
                self.ask("SAVEPOINT s")
                self.rolled_back.append(self.emit(self.session, "x"))
                self.ask("ROLLBACK TO s")
            events.append(self.emit(self.session, "k"))
        if self.random.random() < 0.85:
            self.ask("COMMIT")
            self.committed(events)
        else:
            self.ask("ROLLBACK")
            self.rolled_back.extend(events)

    def open_transaction(self):
        """The other session's transaction begins, goes on or ends."""
        if self.open is None:
            self.ask("BEGIN", self.other)
            self.open = []
        if self.random.random() < 0.7:
            self.open.append(self.emit(self.other, "o"))
            return
        if self.random.random() < 0.7:
            self.ask("COMMIT", self.other)
            self.committed(self.open)
        else:
            self.ask("ROLLBACK", self.other)
            self.rolled_back.extend(self.open)
        self.open = None

    # ------------------------------------------------------------- endpoints

    def any_endpoint(self):
        return self.endpoints[self.random.choice(sorted(self.endpoints))] if self.endpoints else None

    def some_patterns(self):
        return self.random.sample(PATTERNS, self.random.randint(1, 2))

    def not_owed(self, endpoint, condition=lambda event: True):
        for event in self.events:
            if endpoint.path in event["must"] and condition(event):
                event["must"].discard(endpoint.path)
                event["may"].add(endpoint.path)

    def create(self):
        if len(self.endpoints) >= MOST_ENDPOINTS:
            return
        self.made += 1
        name = "e%d" % self.made
        path = self.random.choice(("/ok/", "/ok/", "/flaky/")) + name
        divisor = self.random.choice((None, None, 2, 3))
        e = Endpoint(name, path, self.random.choice(TENANTS), self.some_patterns(), divisor)
        beginning = self.random.random() < 0.3
        self.ask("SELECT outbox.create_endpoint('%s', '%s%s?first=1&status=500', %s, tenant => %s, start_at => '%s',"
                 " max_in_flight => %d, backoff_base => '20 ms', backoff_max => '200 ms')"
                 % (name, self.options.url, path, e.settings(), literal(e.tenant),
                    "beginning" if beginning else "now", self.random.choice((1, 4, 32))))
        self.endpoints[name] = e
        for event in self.events if beginning else ():
            if e.wants(event) and not event.get("forgotten"):
                event["must"].add(path)

    def alter(self):
        e = self.any_endpoint()
        if e is None:
            return
        e.patterns = self.some_patterns()
        e.divisor = self.random.choice((None, 2, 3))
        self.ask("SELECT outbox.alter_endpoint('%s', %s%s)"
                 % (e.name, e.settings(), "" if e.divisor else ", reset => '{filter}'"))
        # What it has read is judged as before or anew.
        self.not_owed(e, lambda event: not e.wants(event))
        for event in self.events:
            if e.wants(event) and e.path not in event["must"]:
                event["may"].add(e.path)

    def pause(self):
        e = self.any_endpoint()
        if e and not e.paused:
            self.ask("SELECT outbox.pause_endpoint('%s')" % e.name)
            e.paused = True

    def resume(self):
        e = self.any_endpoint()
        if e and e.paused:
            self.ask("SELECT outbox.resume_endpoint('%s')" % e.name)
            e.paused = False

    def seek(self):
        """To the end of the log: what it has not got is not owed any more."""
        e = self.any_endpoint()
        if e:
            self.ask("SELECT outbox.seek_endpoint('%s', 'now')" % e.name)
            self.not_owed(e)

    def seek_back(self):
        """To the beginning or to the time of an event: what came since comes again.  Half
        of the endpoints get another path with it, to which each event is new.  What was
        emitted before that time may come again, too, because the place is that of a tick."""
        e = self.any_endpoint()
        if e is None or not self.events:
            return
        start = None
        if self.random.random() < 0.75:
            event = self.random.choice(self.events[-200:])
            start = self.ask("SELECT created_at FROM outbox.all_events WHERE id = '%s'" % event["id"])[0][0]
            if self.random.random() < 0.75:
                # The first event after a tick, which is where such a place may be wrong by one
                start = self.ask("SELECT COALESCE(min(created_at), '%s') FROM outbox.all_events WHERE created_at >"
                                 " (SELECT max(taken_at) FROM outbox.ticks WHERE taken_at < '%s')" % (start, start))[0][0]
            since = {row[0] for row in self.ask("SELECT id FROM outbox.all_events WHERE created_at >= '%s'" % start)}
        url = None
        if self.random.random() < 0.5:
            self.made += 1
            url = "%s.%d" % (e.path, self.made)
        self.ask("BEGIN")
        if url:
            self.ask("SELECT outbox.alter_endpoint('%s', url => '%s%s?first=1&status=500')"
                     % (e.name, self.options.url, url))
        self.ask("SELECT outbox.seek_endpoint('%s', '%s')" % (e.name, start or "beginning"))
        begun = time.time()
        self.ask("COMMIT")
        if url:
            self.not_owed(e)
            self.dropped.append(Endpoint(e.name, e.path, e.tenant, e.patterns, e.divisor))
            for event in self.events:       # what was parked before that place stays so
                if e.path in event["may"]:
                    event["may"].add(url)
            e.path = url
        for event in self.events:
            if not e.wants(event) or event.get("forgotten"):
                continue
            must = start is None or event["id"] in since
            if not url:
                self.again.append((e.path, event["id"], begun if must else None))
                if must and e.path not in event["must"]:
                    self.skipped.add((e.path, event["id"]))
            if must:
                event["must"].add(e.path)
            else:
                event["must"].discard(e.path)
                event["may"].add(e.path)

    def drop(self):
        e = self.any_endpoint()
        if e:
            self.ask("SELECT outbox.drop_endpoint('%s', discard => true)" % e.name)
            self.gone(e)

    def gone(self, e):
        """A worker may learn of it a moment later."""
        self.not_owed(e)
        del self.endpoints[e.name]
        self.dropped.append(e)

    def forget(self):
        tenant = self.random.choice(TENANTS[1:])
        if not self.forgets or self.open is not None:
            return
        if tenant not in [e.tenant for e in self.endpoints.values()] + [e["tenant"] for e in self.events]:
            return
        self.ask("SELECT outbox.forget(%s)" % literal(tenant))
        for e in list(self.endpoints.values()):
            if e.tenant == tenant:
                self.gone(e)
        for event in self.events:
            if event["tenant"] == tenant:
                event["forgotten"] = True
                event["may"] |= event["must"]
                event["must"] = set()

    # --------------------------------------------------------------- workers

    def died(self, begun):
        self.deaths.append({"wall": begun, "until": time.time() + SLACK, "window": SLACK})

    def workers(self):
        begun = time.time()
        self.ask("ALTER SYSTEM SET outbox.workers_per_database = %d" % self.random.randint(1, 4))
        self.ask("SELECT pg_reload_conf()")
        self.died(begun)

    def stop_worker(self):
        begun = time.time()
        self.ask("SELECT pg_terminate_backend(pid) FROM outbox.workers WHERE pid IS NOT NULL ORDER BY random() LIMIT 1")
        self.died(begun)

    def crash(self):
        """The server begins anew, and with it the sessions."""
        pids = self.ask("SELECT pid FROM outbox.workers WHERE pid IS NOT NULL ORDER BY random() LIMIT 1")
        if not pids:
            return
        begun = time.time()
        try:
            os.kill(int(pids[0][0]), signal.SIGKILL)
        except ProcessLookupError:
            return                      # it has ended by itself
        for session in (self.session, self.other):
            try:
                for _ in range(30):
                    session.query("SELECT pg_sleep(1)")
                return                  # it had ended, and was not taken off the list yet
            except ConnectionError:
                session.close()
        self.rolled_back.extend(self.open or [])
        self.open = None
        self.session = self.connect()
        self.other = self.connect()
        self.died(begun)

    # ------------------------------------------------------------------ run

    STEPS = [(transaction, 50), (open_transaction, 20), (create, 8), (alter, 4), (pause, 4), (resume, 6), (seek, 1),
             (seek_back, 2), (drop, 2), (forget, 1), (workers, 1), (stop_worker, 1), (crash, 1)]

    def step(self):
        steps, weights = zip(*self.STEPS)
        do = self.random.choices(steps, weights)[0]
        do(self)
        self.done[do.__name__] += 1

    def settle(self):
        if self.open is not None:
            self.ask("COMMIT", self.other)
            self.committed(self.open)
            self.open = None
        for e in self.endpoints.values():
            if e.paused:
                self.ask("SELECT outbox.resume_endpoint('%s')" % e.name)
                e.paused = False
        self.wait("SELECT NOT EXISTS (SELECT FROM outbox.deliveries"
                  " WHERE status NOT IN ('delivered', 'dead', 'cancelled', 'forgotten'))")

    def write(self):
        def file(name, lines):
            with open(self.options.log + name, "w", encoding="utf-8") as out:
                out.writelines(line + "\n" for line in lines)

        file("", [json.dumps({"id": e["id"], "key": e.get("key"), "n": e["n"], "outcome": "committed",
                              "endpoints": sorted(e["must"]), "may": sorted(e["may"])}) for e in self.events]
             + [json.dumps({"id": e["id"], "outcome": "rolledback"}) for e in self.rolled_back])
        file(".dead", ["%s %s" % (path, e["id"]) for e in self.events for path in sorted(e["may"] - e["must"])])
        file(".skipped", ["%s %s" % pair for pair in sorted(self.skipped)])
        must = {(path, e["id"]) for e in self.events for path in e["must"]}
        file(".again", [json.dumps({"path": path, "id": event, "since": since if (path, event) in must else None})
                        for path, event, since in self.again])
        file(".deaths", map(json.dumps, self.deaths))
        file(".endpoints", sorted(e.path for e in self.endpoints.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    model = Model(parser.parse_args())
    for _ in range(5):
        model.create()
    for number in range(model.options.steps):
        try:
            model.step()
        except (SqlError, ConnectionError, TimeoutError) as error:
            sys.exit("step %d: %s" % (number, error))
    model.settle()
    model.write()
    print(", ".join("%d x %s" % (n, what) for what, n in sorted(model.done.items())))
    owed = sum(len(e["must"]) for e in model.events)
    print("%d events, of which %d deliveries are owed" % (len(model.events), owed))


if __name__ == "__main__":
    main()
