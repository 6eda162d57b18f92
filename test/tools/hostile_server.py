"""What hostile servers have in common: test/kafka/hostile.py and test/aws/hostile.py.

    hostile.py --ready FILE --journal FILE [NAME ...]

Each behaviour has a port of 127.0.0.1.  FILE gets a line "PORT NAME" for each of them, all at
once.  The journal gets its name whenever it does what it is named after, and what else a
behaviour notes.  With names, only these are there.  A server ends with its parent.
"""

import argparse
import os
import resource
import socket
import struct
import threading
import time


class Silent(Exception):
    """Nothing more is said, and the connection stays."""


class Closed(Exception):
    """The connection is ended."""


def silent(*_):
    raise Silent


def closed(*_):
    raise Closed


def endless(block, pause=0.01):
    def send(connection):
        while True:
            connection.sendall(block() if callable(block) else block)
            time.sleep(pause)
    return send


def slowly(data, connection, pause):
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(pause)


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise Closed


def said(data):
    def send(connection):
        connection.sendall(data)
        raise Closed
    return send


class Server:
    """One behaviour.  A subclass has talk(connection), which notes what it does."""

    accepts = True

    def __init__(self, name, journal):
        self.name = name
        self.journal = journal
        self.prepare()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=50 if self.accepts else 0)
        self.port = self.listener.getsockname()[1]
        self.waiting = [] if self.accepts else [self.connect() for _ in range(4)]

    def prepare(self):
        """Before it listens"""

    def connect(self):
        """Takes a place in the queue of connections.  When it is full, the kernel answers no more."""
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", self.port))
        return connection

    def note(self, *more):
        os.write(self.journal, "\t".join((self.name, *more)).encode() + b"\n")

    def accept(self):
        if self.waiting:
            self.note()
        while not self.waiting:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            with connection:
                try:
                    self.talk(connection)
                except Silent:
                    while connection.recv(65536):
                        pass
        except (OSError, Closed):
            pass

    def talk(self, connection):
        raise NotImplementedError

    @staticmethod
    def read(connection, length):
        data = b""
        while len(data) < length:
            piece = connection.recv(length - len(data))
            if not piece:
                raise Closed
            data += piece
        return data


def main(server, names):
    """Serves these behaviours, or those that the command names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True)
    parser.add_argument("--journal", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    journal = os.open(options.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    servers = [server(name, journal) for name in options.names or names]
    for each in servers:
        threading.Thread(target=each.accept, daemon=True).start()
    parent = os.getppid()
    with open(options.ready + ".new", "w") as file:
        file.writelines("%d %s\n" % (each.port, each.name) for each in servers)
    os.rename(options.ready + ".new", options.ready)
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)
