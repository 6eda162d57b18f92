#!/usr/bin/env python3
"""Receivers that answer well, and whose connections end before that.

    hostile.py --ready FILE --journal FILE [NAME ...]

Arguments, ports and journal are those of tools/hostile_server.py.  $CONNECTIONS_CERT and
$CONNECTIONS_KEY are for TLS.  Each request that arrived whole has a line in the journal: the
behaviour, "saw", its webhook-id and its outbox-attempt.  So has each connection: "connection".

    reset      TLS.  The first connection is reset before the handshake.
    second     The second request on each connection is read, and the connection ends.
    unread     The same, but it is not read.
    goaway     HTTP/2.  The first connection is told to go away, with no stream processed.
    refused    HTTP/2.  The first 20 streams are refused.
    busy       HTTP/2.  All streams are refused while the journal's name with .busy exists.
    ok         Plain, and answers after 0.2 s.
"""

import os
import ssl
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))

import hostile_server  # noqa: E402

NAMES = ("reset", "second", "unread", "goaway", "refused", "busy", "ok")
OVER_2 = ("goaway", "refused", "busy")
REFUSED_STREAM = struct.pack(">I", 7)


class Receiver(hostile_server.Server):
    def prepare(self):
        self.connections = 0
        self.streams = 0
        self.lock = threading.Lock()
        self.context = None
        if self.name == "reset" or self.name in OVER_2:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(os.environ["CONNECTIONS_CERT"], os.environ["CONNECTIONS_KEY"])
            if self.name in OVER_2:
                self.context.set_alpn_protocols(["h2"])

    def talk(self, connection):
        with self.lock:
            self.connections += 1
            first = self.connections == 1
        self.note("connection")
        if self.name == "reset" and first:
            hostile_server.reset(connection)
        if self.context:
            connection = self.context.wrap_socket(connection, server_side=True)
        if self.name in OVER_2:
            self.talk_2(connection, first)
        for n in range(1, 1_000_000):
            if self.name == "unread" and n == 2:
                if not connection.recv(1):
                    return
                self.note("unread")
                hostile_server.reset(connection)
            self.request(connection)
            if self.name == "second" and n == 2:
                return
            if self.name == "ok":
                time.sleep(0.2)
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    def request(self, connection):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.read(connection, 1)
        lines = (line.split(":", 1) for line in head.decode().split("\r\n")[1:] if line)
        fields = {name.lower(): value.strip() for name, value in lines}
        self.read(connection, int(fields.get("content-length", 0)))
        self.note("saw", fields["webhook-id"], fields["outbox-attempt"])

    def frame(self, connection, kind, flags, stream, data=b""):
        connection.sendall(struct.pack(">I", len(data))[1:] + bytes([kind, flags]) +
                           struct.pack(">I", stream) + data)

    def talk_2(self, connection, first):
        """Header blocks are not decoded."""
        self.read(connection, 24)
        self.frame(connection, 4, 0, 0)
        while True:
            head = self.read(connection, 9)
            data = self.read(connection, int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
            if kind == 4 and not flags & 1:
                self.frame(connection, 4, 1, 0)
            elif kind == 6 and not flags & 1:
                self.frame(connection, 6, 1, 0, data)
            elif kind == 1:
                with self.lock:
                    self.streams += 1
                    many = self.streams > 20
                if self.name == "goaway" and first:
                    self.frame(connection, 7, 0, 0, bytes(8))
                    raise hostile_server.Closed
                if (self.name == "refused" and not many) or (self.name == "busy" and self.is_busy()):
                    self.note("refused")
                    self.frame(connection, 3, 0, stream, REFUSED_STREAM)
                else:
                    self.note("saw")
                    self.frame(connection, 1, 5, stream, b"\x89")

    def is_busy(self):
        return os.path.exists(os.readlink("/proc/self/fd/%d" % self.journal) + ".busy")


if __name__ == "__main__":
    hostile_server.main(Receiver, NAMES)
