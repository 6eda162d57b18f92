#!/usr/bin/env python3
"""A name server for the tests, on 127.0.0.1.

    dns.py --zone FILE --journal FILE --ready FILE [--port 53]

The zone has a line per name: "name address address ...".  "|" separates what
successive lookups are answered with; the last part stays.  "silent" instead of
addresses: no answer, ever.  A name that is not there does not exist.  The file
is read again when it has changed.  The journal gets each question: "name type".
"""

import argparse
import ipaddress
import os
import signal
import socket
import struct
import sys

A, AAAA = 1, 28


class Zone:
    def __init__(self, file):
        self.file = file
        self.seen = None
        self.names = {}
        self.asked = {}             # (name, type) -> lookups so far

    def answers(self, name, kind):
        """A list of packed addresses; None: no such name; False: silence."""
        seen = os.stat(self.file).st_mtime_ns
        if seen != self.seen:
            self.seen = seen
            with open(self.file) as lines:
                self.names = {words[0]: words[1:]
                              for words in map(str.split, lines) if words}
        if name not in self.names:
            return None
        parts = " ".join(self.names[name]).split("|")
        turn = self.asked.get((name, kind), 0)
        self.asked[name, kind] = turn + 1
        words = parts[min(turn, len(parts) - 1)].split()
        if words == ["silent"]:
            return False
        addresses = map(ipaddress.ip_address, words)
        return [a.packed for a in addresses
                if a.version == (4 if kind == A else 6) and kind in (A, AAAA)]


def question(packet):
    """(name, type, the question's bytes)"""
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1:at + 1 + packet[at]].decode("latin-1"))
        at += packet[at] + 1
    kind = struct.unpack_from("!H", packet, at + 1)[0]
    return ".".join(labels).lower(), kind, packet[12:at + 5]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--zone", required=True)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--ready", required=True)
    parser.add_argument("--port", type=int, default=53)
    options = parser.parse_args()

    zone = Zone(options.zone)
    journal = open(options.journal, "a", buffering=1)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", options.port))
    sock.settimeout(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent = os.getppid()
    open(options.ready, "w").close()
    while os.getppid() == parent:
        try:
            packet, client = sock.recvfrom(4096)
            name, kind, asked = question(packet)
        except (TimeoutError, IndexError, struct.error):
            continue
        journal.write("%s %s\n" % (name, {A: "A", AAAA: "AAAA"}.get(kind, kind)))
        found = zone.answers(name, kind)
        if found is False:
            continue
        flags = 0x8180 | (3 if found is None else 0)
        records = b"".join(struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(a)) + a
                           for a in found or [])
        sock.sendto(packet[:2] + struct.pack("!HHHHH", flags, 1, len(found or []), 0, 0)
                    + asked + records, client)


if __name__ == "__main__":
    main()
