#!/usr/bin/env python3
"""Stands in for a cluster of Amazon MSK with one broker, on 127.0.0.1, with TLS.

Usage: msk.py JOURNAL PEM REGION HOST.  It prints its port.  HOST is what it tells clients that its
broker is called.  Each line of stdin is a JSON object: "secrets" are the keys that are known, as
{id: [secret, session token or null]}, "forget" ids that are not known any more, "second" the name
of a second broker, which has the records, "words" what it says when it refuses, "clock" seconds that are added to the time, "drop" a key:
connections that have logged in with it are ended, if the token was made not later than "until".
It prints "ok" for each.  The journal has a line for each login: what is in
the token, the name that the client has asked for by TLS, and what is wrong.
"""
import json
import os
import socket
import ssl
import struct
import sys
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "aws"))
from hostile import SUPPORTED, Broker, Request, frame, i16, i32, text  # noqa: E402
from msk_token import judge  # noqa: E402

HANDSHAKE, AUTHENTICATE = 17, 36
journal = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
region = sys.argv[3]
told = {"second": None, "words": None, "clock": 0}
secrets = {}
open_ones = {}


class Msk(Broker):
    """One connection"""

    def __init__(self, port, name):
        super().__init__(port)
        self.name = name
        self.login = None

    def versions(self, request):
        supported = SUPPORTED + [(HANDSHAKE, 0, 1), (AUTHENTICATE, 0, 0)]
        return i16(35 if request.version > 0 else 0) + i32(len(supported)) + b"".join(
            i16(a) + i16(b) + i16(c) for a, b, c in supported)

    def metadata(self, _request):
        names = [name.encode() for name in (sys.argv[4], told["second"]) if name]
        return self.whole_metadata([self.broker(n + 1, name) for n, name in enumerate(names)],
                                   [self.topic([self.partition(0, leader=len(names))])])

    def authenticate(self, request):
        said = request.rest[4:4 + struct.unpack(">i", request.rest[:4])[0]].decode()
        token = said.split("Bearer ", 1)[-1].rstrip("\1")
        wrong, parts = judge(token, secrets, region, time.time() + told["clock"])
        if not said.startswith("n,,\1auth=Bearer ") or not said.endswith("\1\1"):
            wrong = "no OAUTHBEARER"
        os.write(journal, json.dumps({**parts, "server": self.name, "wrong": wrong}).encode() + b"\n")
        self.login = None if wrong else parts
        words = (told["words"] or "[4711]: Access denied: %s").replace("TOKEN", token)
        return i16(58 if wrong else 0) + text((words % wrong if "%s" in words else words).encode() if wrong else None) + i32(0)

    def answer(self, request):
        if request.api == HANDSHAKE:
            return frame(request.correlation, i16(0) + i32(1) + text(b"OAUTHBEARER"))
        if request.api == AUTHENTICATE:
            return frame(request.correlation, self.authenticate(request))
        return super().answer(request) if self.login or request.api == 18 else b""


def read(connection, length):
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise OSError("closed")
        data += piece
    return data


def serve(connection):
    names = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2])
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    try:
        with context.wrap_socket(connection, server_side=True) as encrypted:
            broker = open_ones[encrypted] = Msk(port, names[0] if names else None)
            while True:
                request = Request(read(encrypted, struct.unpack(">i", read(encrypted, 4))[0]))
                encrypted.sendall(broker.answer(request))
    except OSError:
        pass


def accept():
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
threading.Thread(target=accept, daemon=True).start()
print(port, flush=True)
for line in sys.stdin:
    new = json.loads(line)
    secrets.update(new.pop("secrets", {}))
    for key in new.pop("forget", []):
        secrets.pop(key, None)
    drop, until = new.pop("drop", None), new.pop("until", "9")
    for one, login in [(one, broker.login) for one, broker in list(open_ones.items())]:
        if login and login["key"] == drop and login["X-Amz-Date"] <= until:
            del open_ones[one]
            try:
                socket.socket.shutdown(one, socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended
    told.update(new)
    print("ok", flush=True)
