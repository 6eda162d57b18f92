#!/usr/bin/env python3
"""A broker that is made anew as another cluster, for test/t/351_cluster_made_anew.pl.

    remade.py --ready FILE --journal FILE broker

Its cluster has the id in the file JOURNAL.cluster.  When that file has changed, all connections end with
the next request, which gets no answer.  The journal gets the id and the number of the producer for each
request that has records, and "init" where a producer was given its number.
"""

import itertools
import os
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hostile  # noqa: E402

PRODUCER_AT = 43  # in a batch of records


class Remade(hostile.Hostile):
    numbers = itertools.count(100)
    connections = []

    def prepare(self):
        self.accepts = True

    def now(self):
        with open(os.readlink("/proc/self/fd/%d" % self.journal) + ".cluster") as file:
            return file.read()

    def end_all(self):
        while self.connections:
            try:
                self.connections.pop().shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        raise hostile.Closed

    def talk(self, connection):
        self.connections.append(connection)
        began = self.now()
        cluster = began.split()[0]
        while True:
            size = struct.unpack(">i", self.read(connection, 4))[0]
            request = hostile.Request(self.read(connection, size))
            if self.now() != began:
                self.end_all()
            if request.api == hostile.METADATA:
                body = self.broker.metadata(request).replace(b"cluster", cluster.encode())
            elif request.api == hostile.INIT_PRODUCER:
                number = next(self.numbers)
                self.note("init", cluster, str(number))
                body = hostile.i32(0) + hostile.i16(0) + hostile.i64(number) + hostile.i16(0)
            elif request.api == hostile.PRODUCE:
                # no transaction, acks, timeout, one topic "t", one partition 0, its batch
                batch = request.rest[2 + 2 + 4 + 4 + 3 + 4 + 4 + 4:]
                self.note("records", cluster, str(struct.unpack(">q", batch[PRODUCER_AT:PRODUCER_AT + 8])[0]))
                body = self.broker.produced()
            else:
                connection.sendall(self.broker.answer(request))
                continue
            connection.sendall(hostile.frame(request.correlation, body))


if __name__ == "__main__":
    hostile.main(Remade, ["broker"])
