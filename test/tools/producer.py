#!/usr/bin/env python3
"""Emits events from several sessions and writes down what became of each, for
check_history.py.

    producer.py --socket DIR --port N --dbname DB --log FILE
                [--sessions 4] [--keys 5] [--rate 200] [--seconds 5]
                [--rollback 0.1] [--topic load.test] [--set "SQL"]
                [--mixed] [--bulk N] [--routes JSON]

Each session owns its keys, so "n" rises with each emit of a key; another run
with the same log needs another topic, of which the keys are made.  Every id is
logged as "unknown" before COMMIT is sent and again with the outcome afterwards.
When the server goes away a session connects again until its time is over.  It
ends at SIGTERM, too, and then finishes the transaction it is in.

--mixed    everything a transaction can do: savepoints that are rolled back,
           two-phase commit, asynchronous commit, plain INSERTs, scheduled and
           expiring events, deduplication keys
--bulk     up to so many events in one statement
--routes   {"a": {"must": [paths], "may": [paths]}, ...}: topics are --topic, a
           dot and one of these; the checker is told where each event belongs
"""

import argparse
import getpass
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time


class SqlError(Exception):
    """The server refused a statement; the connection is fine."""


class Session:
    """As much of the PostgreSQL protocol as simple queries need."""

    def __init__(self, directory, port, dbname, user):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect("%s/.s.PGSQL.%d" % (directory, port))
        self.file = self.sock.makefile("rb")
        words = b"user\0%s\0database\0%s\0\0" % (user.encode(), dbname.encode())
        self.sock.sendall(struct.pack("!II", len(words) + 8, 196608) + words)
        self._answer()

    def query(self, sql):
        """The rows, each a list of strings."""
        data = sql.encode() + b"\0"
        self.sock.sendall(b"Q" + struct.pack("!I", len(data) + 4) + data)
        return self._answer()

    def _answer(self):
        rows, error = [], None
        while True:
            head = self.file.read(5)
            if len(head) < 5:
                raise ConnectionError("server closed the connection")
            kind, length = head[:1], struct.unpack("!I", head[1:])[0]
            body = self.file.read(length - 4)
            if kind == b"D":
                rows.append(self._row(body))
            elif kind == b"E":
                fields = {f[:1]: f[1:].decode() for f in body.split(b"\0") if f}
                error = "%s: %s" % (fields.get(b"C"), fields.get(b"M"))
                if fields.get(b"V") in ("FATAL", "PANIC"):
                    raise ConnectionError(error)
            elif kind == b"R" and struct.unpack("!I", body[:4])[0] != 0:
                raise ConnectionError("the server wants a password")
            elif kind == b"Z":
                if error:
                    raise SqlError(error)
                return rows

    @staticmethod
    def _row(body):
        row, at = [], 2
        for _ in range(struct.unpack("!H", body[:2])[0]):
            size = struct.unpack("!i", body[at:at + 4])[0]
            at += 4
            row.append(None if size < 0 else body[at:at + size].decode())
            at += max(size, 0)
        return row

    def close(self):
        self.sock.close()


class Broken(Exception):
    """A promise was not kept."""


class Producer(threading.Thread):
    def __init__(self, number, options, log, stop):
        super().__init__()
        self.number = number
        self.options = options
        self.log = log
        self.stop = stop
        self.random = random.Random(options.seed * 1000 + number)
        self.keys = {"%s-s%d-k%d" % (options.topic, number, k): 0
                     for k in range(options.keys)}
        self.session = None
        self.in_doubt = None        # (gid, events) of a prepared transaction
        self.gids = 0
        self.dedup = {}             # (topic, dedup_key) -> id, as committed
        self.dedup_keys = 0
        self.seen = set()           # ids that emit() returned with a dedup_key
        self.broken = False

    def note(self, events, outcome):
        for event in events:
            event["outcome"] = outcome
            event["wall"] = time.time()
        data = "".join(json.dumps(event) + "\n" for event in events)
        os.write(self.log, data.encode())

    def run(self):
        pause = self.options.sessions / self.options.rate
        due = time.monotonic()
        while not self.stop.is_set() or self.in_doubt:
            try:
                if self.session is None:
                    self.session = Session(self.options.socket, self.options.port,
                                           self.options.dbname,
                                           self.options.user)
                    self.dedup.clear()      # it is unknown what was committed
                    self.dedup_keys += 1
                    if self.options.set:
                        self.session.query(self.options.set)
                if self.in_doubt:
                    self.resolve()
                    continue
                due += pause * self.transaction()
            except OSError:
                if self.session:
                    self.session.close()
                self.session = None
                self.stop.wait(0.05)
                if self.stop.is_set():
                    time.sleep(0.05)
            except SqlError as error:
                print("producer: %s" % error, file=sys.stderr)
                self.session.query("ROLLBACK")
                self.stop.wait(0.05)
            except Broken as error:
                print("producer: %s" % error, file=sys.stderr)
                self.broken = True
                return
            behind = due - time.monotonic()
            if behind > 0:
                self.stop.wait(behind)
            elif behind < -1:
                due = time.monotonic()

    def chance(self, share):
        return self.random.random() < share

    # --- events ----------------------------------------------------------

    def new_event(self):
        """An event of the next number of one of the keys; its topic last."""
        key = self.random.choice(list(self.keys))
        self.keys[key] += 1
        event = {"key": key, "n": self.keys[key]}
        topic = self.options.topic
        if self.options.routes:
            suffix = self.random.choice(sorted(self.options.routes))
            topic += "." + suffix
            route = self.options.routes[suffix]
            event["endpoints"] = route["must"]
            if route.get("may"):
                event["may"] = route["may"]
        return event, topic

    def emit_one(self):
        event, topic = self.new_event()
        more = ""
        dedup = None
        if self.options.mixed:
            kind = self.random.random()
            if kind < 0.05:
                # Its place in the log is not that of its emit.
                more = (", deliver_at => clock_timestamp() + interval '%d ms'"
                        % self.random.randint(0, 2000))
            elif kind < 0.08:
                more = (", expires_at => clock_timestamp() + interval '%d ms'"
                        % self.random.randint(1, 3000))
            elif kind < 0.15:
                dedup = (topic, "d%d-%d" % (self.number, self.dedup_keys))
                self.dedup_keys += self.chance(0.5)
                more = ", dedup_key => '%s'" % dedup[1]
        keyless = self.options.mixed and self.chance(0.05)
        (row,) = self.session.query(
            "SELECT outbox.emit('%s', '{\"n\": %d}'::jsonb, key => %s%s)"
            % (topic, event["n"], "NULL" if keyless else "'%s'" % event["key"], more))
        event["id"] = row[0]
        if keyless or (more and not dedup):
            event["key"] = None
        if dedup:
            before = self.dedup.get(dedup) or self.pending_dedup.get(dedup)
            if before and before != row[0]:
                raise Broken("dedup_key %s gave %s, then %s"
                             % (dedup[1], before, row[0]))
            self.pending_dedup[dedup] = row[0]
            if row[0] in self.seen:
                return []           # no new event
            self.seen.add(row[0])
        return [event]

    def emit_many(self, n):
        events, rows = [], []
        for _ in range(n):
            event, topic = self.new_event()
            events.append(event)
            rows.append("('%s', '{\"n\": %d}'::jsonb, '%s')"
                        % (topic, event["n"], event["key"]))
        if self.chance(0.5):
            sql = ("INSERT INTO outbox.events (topic, payload, key) VALUES %s"
                   " RETURNING id" % ", ".join(rows))
        else:
            sql = ("SELECT outbox.emit(t, p, k) FROM (VALUES %s) v (t, p, k)"
                   % ", ".join(rows))
        for event, row in zip(events, self.session.query(sql)):
            event["id"] = row[0]
        return events

    def emit_some(self):
        if self.options.bulk > 1:
            return self.emit_many(self.random.randint(1, self.options.bulk))
        if self.options.mixed and self.chance(0.1):
            return self.emit_many(self.random.randint(1, 20))
        return self.emit_one()

    # --- transactions ----------------------------------------------------

    def transaction(self):
        """One transaction, of one to four emits; returns how many events."""
        mixed = self.options.mixed
        events, undone = [], []
        self.pending_dedup = {}
        self.session.query("BEGIN")
        try:
            asynchronous = mixed and self.chance(0.3)
            if asynchronous:
                self.session.query("SET LOCAL synchronous_commit = off")
            for _ in range(self.random.randint(1, 4)):
                if mixed and self.chance(0.1):
                    kept = dict(self.pending_dedup)
                    self.session.query("SAVEPOINT s")
                    undone += self.emit_some()
                    self.session.query("ROLLBACK TO s")
                    self.pending_dedup = kept
                else:
                    events += self.emit_some()
            if asynchronous:
                for event in events:
                    event["async"] = True
            self.note(undone, "rolledback")
            self.note(events, "unknown")
            if self.chance(self.options.rollback):
                self.session.query("ROLLBACK")
                self.note(events, "rolledback")
                return len(events)
        except (SqlError, OSError):
            self.note(events, "rolledback")     # COMMIT was not even sent
            raise
        if mixed and not asynchronous and self.chance(0.05):
            self.gids += 1
            self.in_doubt = ("%s-%d-%d" % (self.options.topic, self.number, self.gids),
                             events)
            self.session.query("PREPARE TRANSACTION '%s'" % self.in_doubt[0])
            self.stop.wait(self.random.random() * 0.3)
            self.resolve()
            return len(events)
        try:
            self.session.query("COMMIT")
        except SqlError:
            self.note(events, "rolledback")
            raise
        self.note(events, "committed")
        self.dedup.update(self.pending_dedup)
        return len(events)

    def resolve(self):
        """The second phase, however often the server dies in between."""
        gid, events = self.in_doubt
        if not self.session.query("SELECT 1 FROM pg_prepared_xacts WHERE gid = '%s'" % gid):
            self.in_doubt = None    # 'unknown': the database tells
            return
        good = self.chance(0.7)
        self.session.query("%s PREPARED '%s'" % ("COMMIT" if good else "ROLLBACK", gid))
        self.in_doubt = None
        self.note(events, "committed" if good else "rolledback")
        if good:
            self.dedup.update(self.pending_dedup)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dbname", required=True)
    parser.add_argument("--user", default=getpass.getuser())
    parser.add_argument("--log", required=True)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rollback", type=float, default=0.1)
    parser.add_argument("--topic", default="load.test")
    parser.add_argument("--set", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--bulk", type=int, default=1)
    parser.add_argument("--routes", type=json.loads)
    options = parser.parse_args()

    log = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    producers = [Producer(i, options, log, stop)
                 for i in range(options.sessions)]
    for producer in producers:
        producer.start()
    stop.wait(options.seconds)
    stop.set()
    for producer in producers:
        producer.join()
    return 1 if any(producer.broken for producer in producers) else 0


if __name__ == "__main__":
    sys.exit(main())
