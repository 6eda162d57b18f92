#!/usr/bin/env python3
"""Emits events from several sessions and writes down what became of each, for
check_history.py.

    producer.py --socket DIR --port N --dbname DB --log FILE
                [--sessions 4] [--keys 5] [--rate 200] [--seconds 5]
                [--rollback 0.1] [--topic load.test] [--set "SQL"]

Each session owns its keys, so "n" rises with each emit of a key; another run
with the same log needs another topic, of which the keys are made.  Every id is
logged as "unknown" before COMMIT is sent and again with the outcome afterwards.
When the server goes away a session connects again until its time is over.  It
ends at SIGTERM, too, and then finishes the transaction it is in.
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


class Producer(threading.Thread):
    def __init__(self, number, options, log, stop):
        super().__init__()
        self.options = options
        self.log = log
        self.stop = stop
        self.random = random.Random(options.seed * 1000 + number)
        self.keys = {"%s-s%d-k%d" % (options.topic, number, k): 0
                     for k in range(options.keys)}
        self.session = None

    def note(self, events, outcome):
        for event in events:
            event["outcome"] = outcome
            event["wall"] = time.time()
        data = "".join(json.dumps(event) + "\n" for event in events)
        os.write(self.log, data.encode())

    def run(self):
        pause = self.options.sessions / self.options.rate
        due = time.monotonic()
        while not self.stop.is_set():
            try:
                if self.session is None:
                    self.session = Session(self.options.socket, self.options.port,
                                           self.options.dbname,
                                           self.options.user)
                    if self.options.set:
                        self.session.query(self.options.set)
                due += pause * self.transaction()
            except OSError:
                if self.session:
                    self.session.close()
                self.session = None
                self.stop.wait(0.05)
            except SqlError as error:
                print("producer: %s" % error, file=sys.stderr)
                self.session.query("ROLLBACK")
                self.stop.wait(0.05)
            behind = due - time.monotonic()
            if behind > 0:
                self.stop.wait(behind)
            elif behind < -1:
                due = time.monotonic()

    def transaction(self):
        """One transaction of one to four events; returns how many."""
        events = []
        self.session.query("BEGIN")
        try:
            for _ in range(self.random.randint(1, 4)):
                key = self.random.choice(list(self.keys))
                self.keys[key] += 1
                n = self.keys[key]
                (row,) = self.session.query(
                    "SELECT outbox.emit('%s', '{\"n\": %d}'::jsonb,"
                    " key => '%s')" % (self.options.topic, n, key))
                events.append({"id": row[0], "key": key, "n": n})
            self.note(events, "unknown")
            if self.random.random() < self.options.rollback:
                self.session.query("ROLLBACK")
                self.note(events, "rolledback")
                return len(events)
        except (SqlError, OSError):
            self.note(events, "rolledback")     # COMMIT was not even sent
            raise
        try:
            self.session.query("COMMIT")
        except SqlError:
            self.note(events, "rolledback")
            raise
        self.note(events, "committed")
        return len(events)


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


if __name__ == "__main__":
    main()
