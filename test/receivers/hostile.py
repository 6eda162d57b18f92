#!/usr/bin/env python3
"""Receivers and proxies that send without end what is no part of an answer, for hostile/answers_without_end.pl.

How it is called is in test/tools/hostile_server.py.  Those whose name begins with "h2" speak HTTP/2 by
TLS, with the certificate CERT and its key KEY of the environment.  Each notes when it begins, and some how much was taken.
"""

import os
import re
import socket
import ssl
import struct
import sys
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from hostile_server import Server, main  # noqa: E402

BEHAVIOURS = {}
SOME = 100 * 1024


def endless(name, head, block):
    """Answers with the head, and then with the block again and again.  Notes how many bytes were taken."""
    def talk(connection, note):
        connection.sendall(head)
        data = block * (SOME // len(block) + 1)
        taken = 0
        try:
            while True:
                taken += connection.send(data)
        finally:
            note("took", str(taken))
    BEHAVIOURS[name] = talk


# ------------------------------------------------------------------------- HTTP/1.1

def bomb(layers=4, repeat=200):
    """A body that decodes to nothing: deflate blocks without content, compressed again and again"""
    head = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
    begin, unit = head, b"\x00\x00\x00\xff\xff" * 200000
    for layer in range(layers - 1):
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        first = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
        again = packer.compress(unit * (repeat if layer else 2)) + packer.flush(zlib.Z_FULL_FLUSH)
        begin, unit = head + first, again
    return begin + unit * repeat


def long_heads(connection, _):
    """Answers each request after a while, with as much of a head as may be"""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + b"".join(b"x-%03d: %s\r\n" % (n, b"y" * 52) for n in range(950)) + b"\r\n"
    time.sleep(0.3)
    connection.sendall(head)
    while connection.recv(65536):
        time.sleep(0.3)
        connection.sendall(head)


BEHAVIOURS["has long heads"] = long_heads


def coded(name, *lines, body=b"", version=b"1.1", last=b"\r\n0\r\n\r\n"):
    head = b"HTTP/%s 200 OK\r\n%s\r\n\r\n" % (version, b"\r\n".join(lines))

    def talk(connection, _):
        data = body or bomb()
        connection.sendall(head + b"%x\r\n" % len(data) + data + last)
        while connection.recv(65536):
            pass
    BEHAVIOURS[name] = talk


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

coded("codes its chunks", b"Transfer-Encoding: gzip, gzip, gzip, gzip, chunked")
coded("codes its chunks in several lines", b"tRANSFER-eNCODING:\tx-gzip", b"Transfer-Encoding: gzip",
      b"Transfer-Encoding:  GZIP ", b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked")
coded("codes its chunks in HTTP/1.0", b"Transfer-Encoding: deflate, chunked", body=b"x", version=b"1.0")
coded("codes its chunks with something unknown", b"Transfer-Encoding: frobnicate", body=b"x")
coded("codes a hint and its chunks", b"Transfer-Encoding: gzip, gzip, gzip, gzip, chunked", version=b"1.1 103 Hint\r\nX: y\r\n\r\nHTTP/1.1")
endless("has a chunk extension without end", CHUNKED + b"1;", b"a=b;")
endless("has chunk extensions without end", CHUNKED, b"1;" + b"x" * 15000 + b"\r\nx\r\n")
endless("has a length of zeros without end", CHUNKED, b"0")


# --------------------------------------------------------------------------- HTTP/2

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def h2(name, block, head=b"", settings=b""):
    """After a request, sends the head, and then the block again and again; b'': nothing."""
    def talk(connection, _):
        connection.sendall(frame(SETTINGS, 0, 0, settings))
        data = b""
        while not re.search(rb"\0\0.\x04\0\0\0\0\0", data, re.S) or (block and len(data) < 200):
            data += connection.recv(65536)
        connection.sendall(frame(SETTINGS, ACK, 0) + head)
        many = block * (SOME // len(block) + 1) if block else b""
        while many:
            connection.sendall(many)
        while connection.recv(65536):
            pass
    BEHAVIOURS["h2 " + name] = talk


def setting(number, value):
    return struct.pack(">HI", number, value)


ANSWER = frame(HEADERS, END_HEADERS, 1, b"\x88")
h2("acknowledges pings without end", frame(PING, ACK, 0, b"x" * 8))
h2("pings without end", frame(PING, 0, 0, b"x" * 8))
h2("has settings without end", frame(SETTINGS, 0, 0))
h2("resets a stream without end", frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
h2("has priorities without end", frame(PRIORITY, 0, 9, b"\0\0\0\1\1"))
h2("widens its window without end", frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"))
h2("has unknown frames without end", frame(0xFA, 0, 0))
h2("gives hints without end", frame(HEADERS, END_HEADERS, 1, b"\x08\x03103"))
h2("sends headers for a closed stream without end", frame(HEADERS, END_HEADERS, 1, b"\x40\x01a\x01b" * 3200),
   head=frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x89"))
h2("answers, and sends empty data without end", frame(DATA, 0, 1), head=ANSWER)
h2("answers, and pads without end", frame(DATA, 8, 1, b"\xff" + b"\0" * 255), head=ANSWER)
h2("continues its headers without end", frame(CONTINUATION, 0, 1), head=frame(HEADERS, 0, 1, b"\x88"))
h2("continues its headers with lines without end", frame(CONTINUATION, 0, 1, b"\x40\x01a\x01b" * 3200), head=frame(HEADERS, 0, 1, b"\x88"))
# A line of 4,000 bytes in its table, and 12,000 references of one byte to it
h2("refers to a long line without end", frame(HEADERS, END_HEADERS, 1, b"\x08\x03103\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 12000))
h2("resizes tables without end", frame(SETTINGS, 0, 0, (setting(1, 0) + setting(1, 4096)) * 100))
h2("has a window of 0", b"", settings=setting(4, 0))
h2("has no streams", b"", settings=setting(3, 0))


# -------------------------------------------------------------------------- proxies

endless("proxy has headers without end", b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")
endless("proxy refuses with a body without end", b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 99999999999\r\n\r\n", b"x")


class Receiver(Server):
    def prepare(self):
        self.context = None
        if self.name.startswith("h2 "):
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(os.environ["CERT"], os.environ["KEY"])
            self.context.set_alpn_protocols(["h2"])

    def talk(self, connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        if self.context:
            connection = self.context.wrap_socket(connection, server_side=True)
        else:
            data = b""
            while b"\r\n\r\n" not in data:
                piece = connection.recv(65536)
                if not piece:
                    return
                data += piece
        self.note()
        try:
            BEHAVIOURS[self.name](connection, self.note)
        finally:
            connection.close()


if __name__ == "__main__":
    main(Receiver, list(BEHAVIOURS))
