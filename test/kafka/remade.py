#!/usr/bin/env python3
"""A broker whose cluster and topics are made anew, for test/t/kafka/cluster_made_anew.pl and kafka/topics_made_anew.pl.

    remade.py --ready FILE --journal FILE broker

Its cluster has the id in the file JOURNAL.cluster.  When that file has changed, all connections end with
the next request, which gets no answer.  The file JOURNAL.topics, if there is one, has a line "NAME ERROR
PARTITIONS TIME" for each topic that is not "t"; a topic with another TIME was made anew.  Records are taken
for repetitions by the numbers of their producers, as Kafka does it.

The journal gets for each request that has records the id, the number of the producer, topic, partition and
"stored", "again" or "gap", "init" where a producer was given its number, and "topic" with the name and the
line for each answer about a topic.
"""

import itertools
import os
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hostile  # noqa: E402

KNOWN = 5  # batches of a producer that a broker remembers
OUT_OF_ORDER = 45


class Fields:
    """Reads a request from its beginning."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def number(self, form):
        value, = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def bytes(self, form="h"):
        length = self.number(form)
        self.at += max(length, 0)
        return self.data[self.at - max(length, 0):self.at]


class Remade(hostile.Hostile):
    numbers = itertools.count(100)
    connections = []
    batches = {}  # (cluster, topic, time, partition, producer): ranges of the last ones

    def prepare(self):
        self.accepts = True

    def file(self, name):
        try:
            with open(os.readlink("/proc/self/fd/%d" % self.journal) + name) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def end_all(self):
        while self.connections:
            try:
                self.connections.pop().shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        raise hostile.Closed

    def topics(self):
        lines = [line.split() for line in self.file(".topics").splitlines()]
        return {name.encode(): (int(error), int(partitions), time) for name, error, partitions, time in lines}

    def metadata(self, request, cluster):
        fields, answer, there = Fields(request.rest), [], self.topics()
        for _ in range(max(fields.number("i"), 0)):
            name = fields.bytes()
            error, partitions, time = there.get(name, (0, 1, ""))
            self.note("topic", name.decode(), "%d %d %s" % (error, partitions, time))
            answer.append(self.broker.topic([self.broker.partition(n) for n in range(0 if error else partitions)], name, error))
        return self.broker.whole_metadata([self.broker.broker(1)], answer).replace(b"cluster", cluster.encode())

    def produced(self, request, cluster):
        """One topic and one partition, as librdkafka sends them"""
        fields = Fields(request.rest)
        fields.bytes()  # no transaction
        acks, _, _ = fields.number("h"), fields.number("i"), fields.number("i")
        assert acks == -1
        topic, _, partition, batch = fields.bytes(), fields.number("i"), fields.number("i"), fields.bytes("i")
        producer, _, base, count = struct.unpack_from(">qhii", batch, 43)
        known = self.batches.setdefault((cluster, topic, self.topics().get(topic), partition, producer), [])
        result, error = "stored", 0
        if (base, count) in known:
            result = "again"
        elif known and base != sum(known[-1]):
            result, error = "gap", OUT_OF_ORDER
        else:
            known.append((base, count))
            del known[:-KNOWN]
        self.note("records", cluster, str(producer), topic.decode(), str(partition), result, str(base), str(count))
        return self.broker.produced(error=error, name=topic, partition=partition)

    def talk(self, connection):
        self.connections.append(connection)
        began = self.file(".cluster")
        cluster = began.split()[0]
        while True:
            size = struct.unpack(">i", self.read(connection, 4))[0]
            request = hostile.Request(self.read(connection, size))
            if self.file(".cluster") != began:
                self.end_all()
            if request.api == hostile.METADATA:
                body = self.metadata(request, cluster)
            elif request.api == hostile.INIT_PRODUCER:
                number = next(self.numbers)
                self.note("init", cluster, str(number))
                body = hostile.i32(0) + hostile.i16(0) + hostile.i64(number) + hostile.i16(0)
            elif request.api == hostile.PRODUCE:
                body = self.produced(request, cluster)
            else:
                connection.sendall(self.broker.answer(request))
                continue
            connection.sendall(hostile.frame(request.correlation, body))


if __name__ == "__main__":
    hostile.main(Remade, ["broker"])
