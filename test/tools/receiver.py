#!/usr/bin/env python3
"""A webhook receiver for the tests: it behaves as badly as it is told to, and
keeps a journal of every request.

    receiver.py --journal FILE --port-file FILE [--port N] [--fsync]
                [--secret /path=whsec_...] [--stay] [--brief] [--ipv6]

The first segment of a request's path says how it is answered; whatever follows
tells endpoints apart ("/ok/a" and "/ok/b").  A path that names no behaviour is
answered with 200.

    /ok                       200
    /status/503?retry_after=2&body=text
    /fail?rate=0.05&status=500    fails that share of the requests
    /flaky?first=2&status=500     fails the first attempts of each webhook-id
    /slow?ms=200              200, later
    /drip?ms=100              one byte of the answer at a time
    /hang                     reads, says nothing
    /hold                     the same, until the path is told to behave
                              otherwise: then what it holds is answered so
    /close, /rst              ends the connection before the answer
    /answer-rst               200, then a reset
    /stall-body?bytes=10      200 and its headers, then so much of a body that
                              never ends
    /garbage, /http09         an answer that is none
    /continue-flood           100 Continue, for ever
    /many-headers?n=100000    a head of that many lines
    /big-body?bytes=1000000   200 and a body of that size
    /endless-body             200 and a body without end
    /gzip                     200 and 100 MB of zeros in a gzip body
    /redirect?to=URL&status=307   302, unless given
    /disable, /abort          "webhook-delivery: disable" / "abort-message"
    /mixed?fail=0.05&busy=0.01&gone=0.001&hang=0.01&close=0.01&slow=0.05&ms=50
                              each with its chance: 500, 429 or 503, 410, /hang,
                              /close, /slow; else 200
    /poison?n=7,9&how=500     fails requests with an event whose payload has one
                              of these "n": with that status, by "named" (200
                              and batchItemFailures) or by "abort"
    /partial?rate=0.1&ms=0    names that share of the events of a batch, later
    /torn                     200 and half of an answer that names no event
    /encoded                  200 and a gzip body that was not asked for
    /allow?origin=*&rate=120  200 with WebHook-Allowed-Origin, and -Rate
    /echo?as=json             200 and the data.challenge of the body, as it is
                              or as {"challenge": ...}
    /raw?hex=...&status=200   these bytes, which the journal takes for that status;
         &then=close|rst      then the connection ends, or else stays open
         &endless=hex         then these, for ever

POST /control?path=/ok/a&behave=/status/503 overrides a path (an empty "behave"
ends that); &secret=whsec_... checks its signatures from now on; ?down=1 ends
all connections but this one unanswered until ?down=0; ?sync=1 just answers.

The journal has one JSON line per request, written (with --fsync: to the disk)
before any answer of that round goes out, so an answer that the sender saw is
always in it.  "round" numbers the turns of the event loop: what arrived in one
round cannot have been caused by an answer of the same round.  A late answer has
a line of its own: {"answer": <request number>, "status": ..., "failed": ...}.
The line of a batch has its members, "batch": [{"id", "key", "topic", "n",
"sha256"}, ...], and "failed": the ids that a 2xx named.  With --brief bodies
and most headers are left out.
"""

import argparse
import base64
import binascii
import functools
import gzip
import hashlib
import heapq
import hmac
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import time
from urllib.parse import parse_qsl, unquote, urlsplit

MAX_REQUEST = 64 * 1024 * 1024
CHUNK = b"x" * 65536
KEPT_HEADERS = ("content-type", "outbox-topic", "outbox-redelivery",
                "webhook-timestamp")

REASONS = {200: "OK", 202: "Accepted", 204: "No Content", 302: "Found",
           400: "Bad Request", 404: "Not Found", 410: "Gone",
           429: "Too Many Requests", 500: "Internal Server Error",
           502: "Bad Gateway", 503: "Service Unavailable",
           504: "Gateway Timeout"}


def answer(status, headers=(), body=b""):
    """The bytes of a whole answer."""
    head = ["HTTP/1.1 %d %s" % (status, REASONS.get(status, "Whatever"))]
    head += ["%s: %s" % h for h in headers]
    if status != 204:
        head.append("Content-Length: %d" % len(body))
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body


OK = answer(200)


def number_in(body):
    """The "n" of an event's payload, None where there is none."""
    try:
        return json.loads(body)["data"]["n"]
    except (ValueError, TypeError, KeyError):
        return None


def batch_members(headers, body):
    """What is in a batch; None: it is none."""
    if not body.startswith(b"[") or "outbox-topic" in headers:
        return None
    cloudevents = headers.get("content-type", "").startswith(
        "application/cloudevents-batch+json")
    members = []
    try:
        items = json.loads(body)
    except ValueError:
        return None
    if not all(isinstance(item, dict) and "id" in item for item in items):
        return None
    for item in items:
        data = item.get("data")
        members.append({
            "id": item["id"],
            "key": item.get("subject" if cloudevents else "key"),
            "topic": item.get("topic"),
            "n": data.get("n") if isinstance(data, dict) else None,
            "sha256": hashlib.sha256(
                json.dumps(item, sort_keys=True).encode()).hexdigest()})
    return members


@functools.cache
def headers(n):
    return (b"HTTP/1.1 200 OK\r\n" +
            b"".join(b"X-Filler-%d: %s\r\n" % (i, b"y" * 80) for i in range(n)) +
            b"Content-Length: 0\r\n\r\n")


@functools.cache
def bomb():
    body = gzip.compress(bytes(100 * 1024 * 1024), 9)
    return answer(200, [("Content-Encoding", "gzip")], body)


class Connection:
    """One client: what it sent so far, and what is still to be sent to it."""

    def __init__(self, sock):
        self.sock = sock
        self.fd = sock.fileno()
        self.inbuf = bytearray()
        self.outbuf = bytearray()
        self.endless = None         # sent again and again
        self.then = None            # once outbuf is out: "close" | "rst"
        self.busy = False           # a request is waiting for its answer
        self.path = None
        self.closed = False


class Receiver:
    def __init__(self, options):
        self.options = options
        self.journal = os.open(options.journal,
                               os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self.journal).st_size
        if size and os.pread(self.journal, 1, size - 1) != b"\n":
            os.write(self.journal, b"\n")  # of one that was killed while it wrote
        self.incarnation = time.time_ns()
        self.round = 0
        self.requests = 0
        self.lines = []             # of this round
        self.actions = []           # of this round, after the lines are written
        self.timers = []
        self.timer_number = 0
        self.connections = {}
        self.attempts = {}          # (path, id) -> requests seen
        self.open = {}              # path -> requests waiting for an answer
        self.overrides = {}
        self.held = {}              # path -> requests that /hold keeps
        self.parsed = {}            # target -> (path, behaviour, query)
        self.down = False
        self.random = random.Random(options.seed)
        self.secrets = {}
        for item in options.secret:
            path, secret = item.split("=", 1)
            self.add_secret(path, secret)

        self.listener = socket.socket(
            socket.AF_INET6 if options.ipv6 else socket.AF_INET)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(
            ("::1" if options.ipv6 else "127.0.0.1", options.port))
        self.listener.listen(4096)
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)

    def add_secret(self, path, secret):
        key = base64.b64decode(secret.removeprefix("whsec_"))
        self.secrets.setdefault(path, []).append(key)

    # --- the loop --------------------------------------------------------

    def run(self):
        parent = os.getppid()
        listener = self.listener.fileno()
        while True:
            wait = 1.0
            if self.timers:
                wait = min(wait, max(0, self.timers[0][0] - time.monotonic()))
            try:
                events = self.epoll.poll(wait)
            except InterruptedError:
                continue
            if os.getppid() != parent and not self.options.stay:
                return              # a test that was killed leaves nothing
            self.round += 1
            for fd, mask in events:
                if fd == listener:
                    self.accept()
                    continue
                conn = self.connections.get(fd)
                if conn is None:
                    continue
                if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                    self.read(conn)
                if mask & select.EPOLLOUT and not conn.closed:
                    self.flush(conn)
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
            if self.lines:
                os.write(self.journal, ("\n".join(self.lines) + "\n").encode())
                if self.options.fsync:
                    os.fdatasync(self.journal)
                self.lines.clear()
            if self.actions:
                actions, self.actions = self.actions, []
                for action in actions:
                    action()

    def after(self, seconds, action):
        self.timer_number += 1
        heapq.heappush(self.timers,
                       (time.monotonic() + seconds, self.timer_number, action))

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except (BlockingIOError, OSError):
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conn = Connection(sock)
            self.connections[conn.fd] = conn
            self.epoll.register(conn.fd, select.EPOLLIN)

    def close(self, conn, reset=False):
        if conn.closed:
            return
        conn.closed = True
        if conn.busy:
            conn.busy = False
            self.open[conn.path] -= 1
        del self.connections[conn.fd]
        self.epoll.unregister(conn.fd)
        if reset:
            conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                 struct.pack("ii", 1, 0))
        conn.sock.close()

    def read(self, conn):
        try:
            data = conn.sock.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close(conn)
            return
        conn.inbuf += data
        while not conn.busy and not conn.closed and conn.inbuf:
            if not self.parse(conn):
                break

    def send(self, conn, data, then=None, endless=None, finished=True):
        """Sends an answer.  finished: the next request may come."""
        if conn.closed:
            return
        if finished and conn.busy:
            conn.busy = False
            self.open[conn.path] -= 1
        conn.outbuf += data
        conn.then = then
        conn.endless = endless
        self.flush(conn)
        while not conn.closed and not conn.busy and conn.inbuf:
            if not self.parse(conn):
                break

    def flush(self, conn):
        turns = 0                   # an endless answer must not keep others
        try:
            while conn.outbuf or conn.endless:
                if not conn.outbuf:
                    turns += 1
                    if turns > 8:
                        raise BlockingIOError
                    conn.outbuf += conn.endless
                sent = conn.sock.send(conn.outbuf)
                del conn.outbuf[:sent]
        except BlockingIOError:
            self.epoll.modify(conn.fd, select.EPOLLIN | select.EPOLLOUT)
            return
        except OSError:
            self.close(conn)
            return
        if conn.then:
            self.close(conn, reset=conn.then == "rst")
        else:
            self.epoll.modify(conn.fd, select.EPOLLIN)

    # --- requests --------------------------------------------------------

    def parse(self, conn):
        """Takes one whole request out of the buffer, if there is one."""
        end = conn.inbuf.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = conn.inbuf[:end].decode("utf-8", "surrogateescape").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            name = name.lower()
            value = value.strip()
            headers[name] = (headers[name] + ", " + value
                             if name in headers else value)
        try:
            method, target, version = lines[0].split(" ")
            length = int(headers.get("content-length", "0"))
        except ValueError:
            self.close(conn)
            return False
        if length > MAX_REQUEST or "transfer-encoding" in headers:
            self.close(conn)
            return False
        if len(conn.inbuf) < end + 4 + length:
            return False
        body = bytes(conn.inbuf[end + 4:end + 4 + length])
        del conn.inbuf[:end + 4 + length]
        self.handle(conn, method, target, headers, body)
        return True

    def parse_target(self, target):
        known = self.parsed.get(target)
        if known is None:
            parts = urlsplit(target)
            query = dict(parse_qsl(parts.query))
            known = (parts.path, parts.path.strip("/").split("/"), query)
            if len(self.parsed) < 10000:
                self.parsed[target] = known
        return known

    def check_signature(self, path, headers, body):
        keys = self.secrets.get(path)
        if "webhook-signature" not in headers:
            return "missing"
        if not keys:
            return None
        try:
            drift = abs(int(headers["webhook-timestamp"]) - time.time())
        except (KeyError, ValueError):
            return "invalid"
        if drift > 300:
            return "invalid"
        signed = ("%s.%s." % (headers.get("webhook-id"),
                              headers["webhook-timestamp"])).encode() + body
        for key in keys:
            mac = hmac.digest(key, signed, "sha256")
            good = "v1," + binascii.b2a_base64(mac, newline=False).decode()
            for one in headers["webhook-signature"].split(" "):
                if hmac.compare_digest(one.encode("utf-8", "replace"),
                                       good.encode()):
                    return "valid"
        return "invalid"

    def handle(self, conn, method, target, headers, body):
        path, segments, query = self.parse_target(target)
        if segments[0] == "control":
            self.control(conn, query)
            return

        self.requests += 1
        number = self.requests
        event_id = headers.get("webhook-id")
        seen = self.attempts.get((path, event_id), 0) + 1
        self.attempts[(path, event_id)] = seen
        conn.busy = True
        conn.path = path
        self.open[path] = self.open.get(path, 0) + 1

        override = self.overrides.get(path)
        if override:
            _, segments, query = self.parse_target(override)
        behaviour = segments[0]
        if self.down:
            behaviour = "close"
        status, act = self.behave(behaviour, body,
                                  batch_members(headers, body),
                                  conn, number, segments, query, seen)

        key = headers.get("outbox-key")
        record = {
            "request": number,
            "round": "%d.%d" % (self.incarnation, self.round),
            "mono": time.monotonic_ns(),
            "wall": time.time(),
            "method": method,
            "target": target,
            "path": path,
            "behaviour": behaviour,
            "status": status,
            "id": event_id,
            "key": unquote(key) if key is not None else None,
            "seen": seen,
            "open": self.open[path],
            "signature": self.check_signature(path, headers, body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "length": len(body),
            "headers": headers,
        }
        if self.members is not None:
            record["batch"] = self.members
            record["failed"] = self.named
        if self.options.brief:
            record["headers"] = {name: headers[name] for name in KEPT_HEADERS
                                 if name in headers}
        elif len(body) <= self.options.keep_body:
            record["body"] = body.decode("utf-8", "replace")
        self.lines.append(json.dumps(record))
        self.actions.append(act)

    def control(self, conn, query):
        path = query.get("path")
        if "behave" in query:
            self.overrides[path] = query["behave"]
            self.release(path)
        elif path and "secret" not in query:
            self.overrides.pop(path, None)
        if "secret" in query:
            self.add_secret(path, query["secret"])
        if "down" in query:
            self.down = query["down"] == "1"
            if self.down:
                for other in list(self.connections.values()):
                    if other is not conn:
                        self.close(other)
        self.actions.append(lambda: self.send(conn, OK))

    def behave(self, behaviour, body, members, *request):
        self.body = body
        self.members = members
        self.named = []
        return getattr(self, "do_" + behaviour.replace("-", "_"),
                       self.do_ok)(*request)

    def release(self, path):
        """What a path holds is answered as it is told to behave now."""
        _, segments, query = self.parse_target(self.overrides[path])
        for conn, number, seen, body, members in self.held.pop(path, ()):
            if conn.closed:
                continue
            status, act = self.behave(segments[0], body, members, conn, number,
                                      segments, query, seen)
            if status is not None:
                self.answered(number, status, failed=self.named)
            self.actions.append(act)

    # --- behaviours: each returns the status that is sent at once (or None)
    # --- and what to do when the journal has the request

    def do_ok(self, conn, number, segments, query, seen):
        return 200, lambda: self.send(conn, OK)

    def status(self, conn, status, query):
        headers = []
        if "retry_after" in query:
            headers.append(("Retry-After", query["retry_after"]))
        data = answer(status, headers, query.get("body", "").encode())
        return status, lambda: self.send(conn, data)

    def do_status(self, conn, number, segments, query, seen):
        return self.status(conn, int(segments[1]), query)

    def do_fail(self, conn, number, segments, query, seen):
        if self.random.random() < float(query.get("rate", "0.5")):
            return self.status(conn, int(query.get("status", "500")), query)
        return self.do_ok(conn, number, segments, query, seen)

    def do_flaky(self, conn, number, segments, query, seen):
        if seen <= int(query.get("first", "1")):
            return self.status(conn, int(query.get("status", "500")), query)
        return self.do_ok(conn, number, segments, query, seen)

    def do_mixed(self, conn, number, segments, query, seen):
        chance = self.random.random()
        for what in ("fail", "busy", "gone", "hang", "close", "slow"):
            chance -= float(query.get(what, "0"))
            if chance < 0:
                break
        else:
            return self.do_ok(conn, number, segments, query, seen)
        if what == "fail":
            return self.status(conn, 500, {})
        if what == "busy":
            return self.status(conn, self.random.choice((429, 503)), {})
        if what == "gone":
            return self.status(conn, 410, {})
        return getattr(self, "do_" + what)(conn, number, segments, query, seen)

    def answered(self, number, status, **more):
        self.lines.append(json.dumps({
            "answer": number, "status": status,
            "round": "%d.%d" % (self.incarnation, self.round),
            "mono": time.monotonic_ns(), "wall": time.time(), **more}))

    def later(self, conn, number, status, data):
        """The late answer, and its own line in the journal before it."""
        if conn.closed:
            return
        self.answered(number, status)
        self.actions.append(lambda: self.send(conn, data))

    def do_slow(self, conn, number, segments, query, seen):
        delay = int(query.get("ms", "200")) / 1000
        self.after(delay, lambda: self.later(conn, number, 200, OK))
        return None, lambda: None

    def do_drip(self, conn, number, segments, query, seen):
        delay = int(query.get("ms", "100")) / 1000

        def drip(at):
            if conn.closed:
                return
            last = at + 1 == len(OK)
            if last:
                self.later(conn, number, 200, OK[at:])
            else:
                self.send(conn, OK[at:at + 1], finished=False)
                self.after(delay, lambda: drip(at + 1))
        return None, lambda: drip(0)

    def do_hang(self, conn, number, segments, query, seen):
        return None, lambda: None

    def do_hold(self, conn, number, segments, query, seen):
        self.held.setdefault(conn.path, []).append(
            (conn, number, seen, self.body, self.members))
        return None, lambda: None

    def do_close(self, conn, number, segments, query, seen):
        return None, lambda: self.close(conn)

    def do_rst(self, conn, number, segments, query, seen):
        return None, lambda: self.close(conn, reset=True)

    def do_answer_rst(self, conn, number, segments, query, seen):
        return 200, lambda: self.send(conn, OK, then="rst")

    def do_stall_body(self, conn, number, segments, query, seen):
        data = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
        data += b"x" * int(query.get("bytes", "10"))
        return 200, lambda: self.send(conn, data, finished=False)

    def do_garbage(self, conn, number, segments, query, seen):
        data = b"\x00\xff this is no HTTP \r\n\r\n\r\n"
        return None, lambda: self.send(conn, data, then="close")

    def do_http09(self, conn, number, segments, query, seen):
        data = b"<html>an answer as in 1991</html>"
        return None, lambda: self.send(conn, data, then="close")

    def do_continue_flood(self, conn, number, segments, query, seen):
        data = b"HTTP/1.1 100 Continue\r\n\r\n" * 1000
        return None, lambda: self.send(conn, b"", endless=data, finished=False)

    def do_many_headers(self, conn, number, segments, query, seen):
        data = headers(int(query.get("n", "100000")))
        return None, lambda: self.send(conn, data)

    def do_big_body(self, conn, number, segments, query, seen):
        size = int(query.get("bytes", "1000000"))
        return 200, lambda: self.send(conn, answer(200, (), b"x" * size))

    def do_endless_body(self, conn, number, segments, query, seen):
        data = b"HTTP/1.1 200 OK\r\n\r\n"
        return 200, lambda: self.send(conn, data, endless=CHUNK,
                                      finished=False)

    def do_gzip(self, conn, number, segments, query, seen):
        data = bomb()
        return 200, lambda: self.send(conn, data)

    def do_raw(self, conn, number, segments, query, seen):
        data = bytes.fromhex(query.get("hex", ""))
        endless = bytes.fromhex(query.get("endless", ""))
        if endless:
            endless *= max(1, len(CHUNK) // len(endless))
        then = query.get("then")
        status = int(query["status"]) if "status" in query else None
        return status, lambda: self.send(conn, data, then=then,
                                         endless=endless or None,
                                         finished=False)

    def do_redirect(self, conn, number, segments, query, seen):
        status = int(query.get("status", "302"))
        data = answer(status, [("Location", query["to"])])
        return status, lambda: self.send(conn, data)

    def do_disable(self, conn, number, segments, query, seen):
        data = answer(int(query.get("status", "500")),
                      [("webhook-delivery", "disable")])
        return int(query.get("status", "500")), lambda: self.send(conn, data)

    def do_abort(self, conn, number, segments, query, seen):
        data = answer(400, [("webhook-delivery", "abort-message")])
        return 400, lambda: self.send(conn, data)

    def name(self, conn, number, ids, delay=0):
        self.named = ids
        body = json.dumps({"batchItemFailures":
                           [{"itemIdentifier": i} for i in ids]})
        data = answer(200, (), body.encode())
        if delay:
            self.after(delay, lambda: self.later(conn, number, 200, data))
            return None, lambda: None
        return 200, lambda: self.send(conn, data)

    def do_poison(self, conn, number, segments, query, seen):
        bad = {int(n) for n in query["n"].split(",")}
        members = self.members or [{"id": None, "n": number_in(self.body)}]
        ids = [m["id"] for m in members if m["n"] in bad]
        how = query.get("how", "500")
        if not ids:
            return self.do_ok(conn, number, segments, query, seen)
        if how == "named":
            return self.name(conn, number, ids)
        if how == "abort":
            return self.do_abort(conn, number, segments, query, seen)
        return self.status(conn, int(how), query)

    def do_partial(self, conn, number, segments, query, seen):
        rate = float(query.get("rate", "0.1"))
        return self.name(conn, number, [m["id"] for m in self.members or ()
                                        if self.random.random() < rate],
                         int(query.get("ms", "0")) / 1000)

    def do_torn(self, conn, number, segments, query, seen):
        data = (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
                b'{"batchItemFailures":[]')
        return None, lambda: self.send(conn, data, then="close")

    def do_allow(self, conn, number, segments, query, seen):
        headers = [("WebHook-Allowed-" + name.capitalize(), query[name])
                   for name in ("origin", "rate") if name in query]
        return 200, lambda: self.send(conn, answer(200, headers))

    def do_echo(self, conn, number, segments, query, seen):
        try:
            token = json.loads(self.body)["data"]["challenge"]
        except (ValueError, KeyError, TypeError):
            token = ""
        text = json.dumps({"challenge": token}) if "as" in query else token
        return 200, lambda: self.send(conn, answer(200, (), text.encode()))

    def do_encoded(self, conn, number, segments, query, seen):
        data = answer(200, [("Content-Encoding", "gzip")], gzip.compress(b"{}"))
        return None, lambda: self.send(conn, data)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--port-file")
    parser.add_argument("--fsync", action="store_true")
    parser.add_argument("--stay", action="store_true",
                        help="outlive the process that started this one")
    parser.add_argument("--secret", action="append", default=[])
    parser.add_argument("--keep-body", type=int, default=4000)
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--ipv6", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    # A worker may have a connection for each request in flight.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    receiver = Receiver(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    if options.port_file:
        port = receiver.listener.getsockname()[1]
        with open(options.port_file + ".new", "w") as file:
            file.write("%d\n" % port)
        os.rename(options.port_file + ".new", options.port_file)
    receiver.run()


if __name__ == "__main__":
    main()
