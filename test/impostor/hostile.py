#!/usr/bin/env python3
"""Servers that take what they are sent, for test/t/secrets/credentials_stay.pl.

How it is called is in test/tools/hostile_server.py.  Each lets a client of Kafka log in by SASL PLAIN, and
refuses a request of HTTP.  The journal gets all bytes that came, as Python writes them.
"""

import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from hostile_server import Closed, Server, main  # noqa: E402

HANDSHAKE, VERSIONS = 17, 18


class Impostor(Server):
    def took(self, connection, length):
        data = self.read(connection, length)
        self.note(repr(data))
        return data

    def talk(self, connection):
        start = self.took(connection, 4)
        if start[0] != 0:
            while b"\r\n\r\n" not in start:
                start += self.read(connection, 1)
            self.note(repr(start))
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            raise Closed
        while True:
            request = self.took(connection, struct.unpack(">i", start)[0])
            api, version, correlation = struct.unpack(">hhi", request[:8])
            if api == VERSIONS:
                body = struct.pack(">hihhhhhh", 35 if version > 0 else 0, 2, VERSIONS, 0, 0, HANDSHAKE, 0, 0)
            elif api == HANDSHAKE:
                body = struct.pack(">hih", 0, 1, 5) + b"PLAIN"
            else:
                raise Closed
            connection.sendall(struct.pack(">ii", 4 + len(body), correlation) + body)
            start = self.took(connection, 4)
            if api == HANDSHAKE:  # what follows is no request: the mechanism's own bytes
                self.took(connection, struct.unpack(">i", start)[0])
                raise Closed


if __name__ == "__main__":
    main(Impostor, ["rightful", "impostor"])
