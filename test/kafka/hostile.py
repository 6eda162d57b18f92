#!/usr/bin/env python3
"""Brokers of Kafka that are hostile or broken, each in another way, for test/t/kafka/hostile_brokers.pl
and good_then_hostile.pl.

How it is called is in test/tools/hostile_server.py.  Without names, all behaviours are there but those
that are too much for librdkafka.
"""

import contextlib
import functools
import itertools
import os
import random
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from hostile_server import Closed, Server, closed, endless, main, reset, said, silent, slowly  # noqa: E402

PRODUCE, FETCH, METADATA, VERSIONS, INIT_PRODUCER, SUBSCRIPTIONS, FIGURES = 0, 1, 3, 18, 22, 71, 72
SUPPORTED = [(PRODUCE, 0, 7), (FETCH, 0, 4), (METADATA, 0, 4), (VERSIONS, 0, 0), (INIT_PRODUCER, 0, 1), (SUBSCRIPTIONS, 0, 0),
             (FIGURES, 0, 0)]
MANY = 0x7fffffff


def i8(n):
    return struct.pack(">b", n)


def i16(n):
    return struct.pack(">h", n)


def i32(n):
    return struct.pack(">i", n)


def i64(n):
    return struct.pack(">q", n)


def text(value):
    return i16(-1) if value is None else i16(len(value)) + value


def frame(correlation, body):
    return i32(4 + len(body)) + i32(correlation) + body


class Request:
    """What was asked, as far as the answers need it."""

    def __init__(self, data):
        self.api, self.version, self.correlation, length = struct.unpack(">hhih", data[:10])
        self.rest = data[10 + max(length, 0):]


class Broker:
    """Answers as a good broker does.  A behaviour replaces a part of that."""

    ports = []  # of all brokers here

    def __init__(self, port):
        self.port = port
        self.ports.append(port)
        self.connections = []
        self.ended = False
        self.times = itertools.count()
        self.cluster = b"cluster"

    def versions(self, request):
        return i16(35 if request.version > 0 else 0) + i32(len(SUPPORTED)) + b"".join(
            i16(a) + i16(b) + i16(c) for a, b, c in SUPPORTED)

    def broker(self, node, host=b"127.0.0.1", port=None):
        return i32(node) + text(host) + i32(self.port if port is None else port) + text(None)

    def partition(self, number, leader=1, error=0, replicas=None):
        return (i16(error) + i32(number) + i32(leader)
                + (replicas or i32(1) + i32(1)) + (replicas or i32(1) + i32(1)))

    def topic(self, partitions, name=b"t", error=0):
        return i16(error) + text(name) + i8(0) + i32(len(partitions)) + b"".join(partitions)

    def whole_metadata(self, brokers, topics, throttle=0, controller=1, cluster=b"cluster"):
        return (i32(throttle) + i32(len(brokers)) + b"".join(brokers) + text(cluster) + i32(controller)
                + i32(len(topics)) + b"".join(topics))

    def metadata(self, _request):
        return self.whole_metadata([self.broker(1)], [self.topic([self.partition(0)])])

    def init_producer(self, _request):
        return i32(0) + i16(0) + i64(4711) + i16(0)

    def produced(self, error=0, name=b"t", partition=0, offset=0, throttle=0):
        return (i32(1) + text(name) + i32(1) + i32(partition) + i16(error) + i64(offset) + i64(-1)
                + i64(0) + i32(throttle))

    def produce(self, _request):
        return self.produced()

    def answer(self, request):
        body = {VERSIONS: self.versions, METADATA: self.metadata, INIT_PRODUCER: self.init_producer,
                PRODUCE: self.produce}.get(request.api)
        return frame(request.correlation, body(request)) if body else b""


def without_rest(broker, request, connection):
    """Names all brokers here, and floods each connection over which it gets records."""
    if request.api == METADATA:
        connection.sendall(frame(request.correlation, broker.whole_metadata(
            [broker.broker(n + 1, port=port) for n, port in enumerate(broker.ports)],
            [broker.topic([broker.partition(n, leader=n + 1) for n in range(len(broker.ports))])])))
    elif request.api != PRODUCE:
        connection.sendall(broker.answer(request))
    else:
        endless(frame(4711, b"") * 10_000, 0)(connection)


def good_until_records(later):
    """Is a good broker until it gets records.  It ends all connections then, and answers each request by
    later(broker, request)."""
    def talk(broker, request, connection):
        broker.connections.append(connection)
        if request.api == PRODUCE:
            broker.ended = True
            for each in broker.connections:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            raise Closed
        connection.sendall(later(broker, request) if broker.ended else broker.answer(request))
    return talk


def itself(broker, count):
    """The broker as several ones, by other words for its address"""
    return [broker.broker(n + 1, b"127.0.0." + b"0" * n + b"1") for n in range(count)]


def each_time_another(partitions):
    """Once it gets records, it ends all connections, and is another cluster from then on."""
    def talk(broker, request, connection):
        broker.connections.append(connection)
        if request.api == PRODUCE:
            broker.cluster = b"cluster %d" % next(broker.times)
            while broker.connections:
                with contextlib.suppress(OSError):
                    broker.connections.pop().shutdown(socket.SHUT_RDWR)
            raise Closed
        connection.sendall(broker.answer(request) if request.api != METADATA else frame(
            request.correlation, broker.whole_metadata(
                [broker.broker(1)], [broker.topic([broker.partition(n) for n in partitions])],
                cluster=broker.cluster)))
    return talk


def one_by_one_with_partition(number):
    """Refuses each batch as too large, also one of a single record."""
    def talk(broker, request):
        if request.api != METADATA:
            return broker.answer(request) if request.api != PRODUCE else frame(request.correlation, broker.produced(error=10))
        return frame(request.correlation, broker.whole_metadata(
            [broker.broker(1)], [broker.topic([broker.partition(number), broker.partition(0)])]))
    return lambda broker, request, connection: connection.sendall(talk(broker, request))


def flood_of_single_records(broker, request, connection):
    """Refuses a batch as too large, and floods the next connection that has records, which is for single ones."""
    if request.api == PRODUCE and broker.connections and connection not in broker.connections:
        endless(frame(4711, b"") * 10_000, 0)(connection)
    if request.api == PRODUCE:
        broker.connections.append(connection)
    connection.sendall(broker.answer(request) if request.api != PRODUCE else frame(request.correlation, broker.produced(error=10)))


def all_but_the_last_byte(broker, request, connection):
    """Names itself as ten brokers, and answers records of each of them so."""
    if request.api == METADATA:
        connection.sendall(frame(request.correlation, broker.whole_metadata(
            itself(broker, 10), [broker.topic([broker.partition(n, leader=n + 1) for n in range(10)])])))
    elif request.api != PRODUCE:
        connection.sendall(broker.answer(request))
    else:
        connection.sendall(i32(31_999_000) + i32(request.correlation) + bytes(31_998_995))
        silent()


def asked(request):
    """The names of the topics whose metadata are asked for"""
    count, at, names = struct.unpack_from(">i", request.rest)[0], 4, []
    for _ in range(max(count, 0)):
        length, = struct.unpack_from(">h", request.rest, at)
        names.append(request.rest[at + 2:at + 2 + length])
        at += 2 + length
    return names


@functools.cache
def partitions_of(broker, count):
    return b"".join(broker.partition(n) for n in range(count))


def large_topics(broker, request):
    """As many topics of 20,000 partitions as one answer may have"""
    return broker.whole_metadata([broker.broker(1)], [
        i16(0) + text(name) + i8(0) + i32(20000) + partitions_of(broker, 20000) for name in asked(request)[-7:]])


def of_no_cluster(broker, request):
    if request.api != METADATA:
        return broker.answer(request)
    return frame(request.correlation, broker.whole_metadata([broker.broker(n, port=1 + n) for n in range(10000)], [], cluster=None))


# --------------------------------------------------------------------------- behaviours

BEHAVIOURS = {}
NEVER = ("never",)


def at_once(name, talk):
    """Does something when the connection is there, before anything was asked."""
    BEHAVIOURS[name] = ("at once", talk)


def instead(name, api, make):
    """Answers the request of this kind with other bytes than a good broker's body."""
    BEHAVIOURS[name] = ("body", api, make)


def framed(name, make, api=VERSIONS):
    """Sends these bytes instead of an answer: make(broker, request, socket)."""
    BEHAVIOURS[name] = ("frame", api, make)


# At the connection
BEHAVIOURS["accepts no connection"] = NEVER
at_once("accepts and says nothing", silent)
at_once("closes at once", closed)
at_once("resets at once", reset)
at_once("sends garbage without being asked", said(random.Random(1).randbytes(4000)))
at_once("sends garbage without end", endless(lambda: random.randbytes(8192)))
at_once("sends zeros without end", endless(bytes(8192)))
at_once("speaks HTTP", said(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
at_once("speaks TLS", said(b"\x15\x03\x01\x00\x02\x02\x28"))
at_once("speaks SSH", said(b"SSH-2.0-OpenSSH_9.2\r\n"))

# Frames
framed("answers with garbage", lambda b, r, s: s.sendall(i32(200) + i32(r.correlation) + random.randbytes(196)))
framed("repeats the request", lambda b, r, s: s.sendall(frame(r.correlation, r.rest)))
framed("has a frame of no bytes", lambda b, r, s: s.sendall(i32(0)))
framed("has a frame of -1 bytes", lambda b, r, s: s.sendall(i32(-1)))
framed("has a frame of -2^31 bytes", lambda b, r, s: s.sendall(i32(-2 ** 31)))
framed("has a frame of 3 bytes", lambda b, r, s: s.sendall(i32(3) + b"abc"))
framed("has a frame of 2^31 - 1 bytes", lambda b, r, s: s.sendall(i32(MANY)))
framed("has a frame of 100 MB", lambda b, r, s: (s.sendall(i32(99_999_999) + i32(r.correlation)),
                                                endless(bytes(65536))(s)))
framed("has a frame of 3 MB and sends nothing of it", lambda b, r, s: (s.sendall(i32(3_000_000)), silent()))
framed("has a frame of 3 MB of zeros", lambda b, r, s: s.sendall(frame(r.correlation, bytes(3_000_000))))
framed("sends a byte now and then", lambda b, r, s: slowly(b.answer(r), s, 0.3))
framed("sends a good answer byte by byte", lambda b, r, s: slowly(b.answer(r), s, 0.01), None)
framed("stops in the middle of a length", lambda b, r, s: (s.sendall(b"\0\0"), silent()))
framed("stops in the middle of an answer", lambda b, r, s: (s.sendall(b.answer(r)[:-3]), silent()))
framed("closes in the middle of an answer", lambda b, r, s: (s.sendall(b.answer(r)[:-3]), closed()))
framed("resets in the middle of an answer", lambda b, r, s: (s.sendall(b.answer(r)[:-3]), reset(s)))
framed("answers what was not asked", lambda b, r, s: s.sendall(frame(r.correlation + 77, b.versions(r))))
framed("answers twice", lambda b, r, s: s.sendall(b.answer(r) * 2), None)
framed("answers without end", lambda b, r, s: endless(frame(4711, bytes(4000)), 0.003)(s), METADATA)
framed("answers, and closes", lambda b, r, s: (s.sendall(b.answer(r)), closed()), METADATA)
framed("is silent after it was asked for versions", silent)
framed("is silent after it has told its versions", silent, METADATA)
framed("closes after it has told its versions", closed, METADATA)
framed("is silent about the number of a producer", silent, INIT_PRODUCER)
framed("closes when it gets records", closed, PRODUCE)
framed("resets when it gets records", lambda b, r, s: reset(s), PRODUCE)
framed("is silent when it gets records", silent, PRODUCE)

# Versions
instead("fails to tell its versions", VERSIONS, lambda b, r: i16(-1) + i32(0))
instead("has versions of nothing", VERSIONS, lambda b, r: i16(0) + i32(0))
instead("has 2^31 - 1 versions", VERSIONS, lambda b, r: i16(0) + i32(MANY))
instead("has -5 versions", VERSIONS, lambda b, r: i16(0) + i32(-5))
instead("has versions that end before they begin", VERSIONS,
        lambda b, r: i16(0) + i32(5) + b"".join(i16(a) + i16(9) + i16(-9) for a, _, _ in SUPPORTED))
instead("has all versions", VERSIONS,
        lambda b, r: i16(0) + i32(60) + b"".join(i16(a) + i16(0) + i16(32767) for a in range(60)))

# From 2.5 on librdkafka would ask which figures of itself are wanted
instead("asks for figures of its clients", SUBSCRIPTIONS, lambda b, r: i32(0) + i16(-1))

# Metadata
instead("names no brokers", METADATA, lambda b, r: b.whole_metadata([], []))
instead("names 2^31 - 1 brokers", METADATA, lambda b, r: i32(0) + i32(MANY))
instead("names -7 brokers", METADATA, lambda b, r: i32(0) + i32(-7) + bytes(100))
instead("names 40 brokers that are not there", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(n, port=1 + n) for n in range(40)], [b.topic([b.partition(n, leader=n) for n in range(40)])]))
instead("names other brokers each time", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)] + [b.broker(2, port=1 + next(b.times) % 99)], [b.topic([b.partition(0, 2)])]))
instead("names brokers without a host", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1, b""), b.broker(3, b"\0")], [b.topic([b.partition(0)])]))
instead("names a broker with a host of 32,767 letters", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1, b"x" * 32767)], [b.topic([b.partition(0)])]))
instead("names brokers in bytes that are no names", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1, b'","nodeid":7,"state":"UP\n\xff\xfe%s%n')], [b.topic([b.partition(0)])]))
instead("names ports that are none", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1, port=0), b.broker(2, port=-1), b.broker(3, port=MANY)], [b.topic([b.partition(0, 3)])]))
instead("gives brokers impossible numbers", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(-1), b.broker(-2 ** 31), b.broker(1), b.broker(1, port=1), b.broker(MANY)], [b.topic([b.partition(0, -7)])]))
instead("names a broker with a private address", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1, b"10.255.255.1")], [b.topic([b.partition(0)])]))
instead("has 2^31 - 1 topics", METADATA, lambda b, r: b.whole_metadata([b.broker(1)], [])[:-4] + i32(MANY))
instead("has other topics", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(0)], name=name) for name in (b"other", b"", b"y" * 32767)]))
instead("has the topic twice", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(0)]), b.topic([b.partition(0), b.partition(1)])]))
instead("has 2^31 - 1 partitions", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [i16(0) + text(b"t") + i8(0) + i32(MANY)]))
instead("has 50,000 partitions", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(n) for n in range(50000)])]))
instead("has more and fewer partitions", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(n) for n in range(next(b.times) % 3 * 50)])]))
instead("numbers partitions wrongly", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(n) for n in (0, 0, 7, MANY, -2 ** 31)])]))
instead("has 2^31 - 1 replicas", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(0, replicas=i32(MANY))])]))
instead("has a leader that is not there", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(0, leader=99)])]))
instead("has errors that do not exist", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(0, error=31000)], error=-9)]))
instead("wants to be left alone for 24 days", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(0)])], throttle=MANY))

# Producer
instead("gives producers impossible numbers", INIT_PRODUCER, lambda b, r: i32(0) + i16(0) + i64(-2 ** 63) + i16(-7))
instead("gives no numbers to producers", INIT_PRODUCER, lambda b, r: i32(0) + i16(31) + i64(-1) + i16(-1))
instead("cuts the number of a producer", INIT_PRODUCER, lambda b, r: i32(0) + i16(0) + b"\1")
instead("has an error for records that does not exist", PRODUCE, lambda b, r: b.produced(error=31000))
instead("has taken another record", PRODUCE, lambda b, r: b.produced(name=b"other", partition=7))
instead("has stored at no place", PRODUCE, lambda b, r: b.produced(offset=-2 ** 63))
instead("has an answer to records that is cut", PRODUCE, lambda b, r: b.produced()[:9])
instead("has 2^31 - 1 answers to records", PRODUCE, lambda b, r: i32(MANY) + text(b"t") + i32(MANY))
instead("says that records are out of order", PRODUCE, lambda b, r: b.produced(error=45))
instead("does not know the producer", PRODUCE, lambda b, r: b.produced(error=59))
instead("fences the producer", PRODUCE, lambda b, r: b.produced(error=47))
instead("says that everything is too large", PRODUCE, lambda b, r: b.produced(error=10))

# Too many for a test that has all of the others
instead("names 10,000 brokers that are not there", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(n, port=1 + n) for n in range(10000)], []))
instead("throttles after the first records", PRODUCE,
        lambda b, r: b.produced(error=19 if next(b.times) else 0, throttle=60000))
framed("answers nothing without rest", without_rest, None)
instead("has 90,000 partitions", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(n) for n in range(90000)])]))
framed("ends all connections, and names 10,000 brokers of no cluster", good_until_records(of_no_cluster), None)
framed("ends all connections, and each one that begins", good_until_records(closed), None)
framed("keeps back the last byte, on each of 10 connections", all_but_the_last_byte, None)
instead("has topics of 20,000 partitions each", METADATA, large_topics)
framed("has the partition -1, and is another cluster each time", each_time_another((-1, 0)), None)
framed("has the partition -1, and says that everything is too large", one_by_one_with_partition(-1), None)
framed("says that everything is too large, and floods single records", flood_of_single_records, None)
ALONE = {"asks for figures of its clients", "names 10,000 brokers that are not there", "has 90,000 partitions", "throttles after the first records",
         "answers nothing without rest", "ends all connections, and names 10,000 brokers of no cluster",
         "ends all connections, and each one that begins", "keeps back the last byte, on each of 10 connections",
         "has topics of 20,000 partitions each",
         "has the partition -1, and is another cluster each time", "has the partition -1, and says that everything is too large",
         "says that everything is too large, and floods single records"}

# What ends the process that librdkafka is in.  2.0.2 and 2.16.0 follow a NULL that a broker
# sends instead of a name.  Versions from 2.6.1 to 2.16.0 abort when versions make no sense.
# After the partition -1, an instance cannot be ended, and its threads stay.
instead("names a broker with no host at all", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1, None)], [b.topic([b.partition(0)])]))
instead("has a topic with no name at all", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(0)], name=None)]))
instead("has the partition -1", METADATA, lambda b, r: b.whole_metadata(
    [b.broker(1)], [b.topic([b.partition(-1), b.partition(0)])]))
DEADLY = {"names a broker with no host at all", "has a topic with no name at all", "has the partition -1",
          "has a frame of 3 MB of zeros", "has versions of nothing", "has versions that end before they begin",
          "has all versions"}


# ------------------------------------------------------------------------------- serving

class Hostile(Server):
    def prepare(self):
        self.accepts = BEHAVIOURS[self.name] != NEVER

    def __init__(self, name, journal):
        super().__init__(name, journal)
        self.broker = Broker(self.port)

    def talk(self, connection):
        what, *how = BEHAVIOURS[self.name]
        if what == "at once":
            self.note()
            how[0](connection)
        while True:
            request = Request(self.read(connection, struct.unpack(">i", self.read(connection, 4))[0]))
            wrong = how[0] in (None, request.api)
            if wrong:
                self.note()
            if not wrong:
                connection.sendall(self.broker.answer(request))
            elif what == "frame":
                how[1](self.broker, request, connection)
            else:
                connection.sendall(frame(request.correlation, how[1](self.broker, request)))


if __name__ == "__main__":
    main(Hostile, BEHAVIOURS.keys() - DEADLY - ALONE)
