#!/usr/bin/env python3
"""What stands before a receiver in the tests: it takes connections, on any
address, with or without TLS, notes where to each of them was made, and passes
on what comes.

    front.py --listen ADDRESS:PORT --to PORT --journal FILE --ready FILE
             [--cert FILE --key FILE [--client-ca FILE] [--only TLSv1]]
             [--proxy] [--only-alpn PROTOCOL]

--to names a port of 127.0.0.1.  --client-ca asks for a certificate that this
authority has signed; --only speaks no other version of TLS.  With --proxy a
client has to say CONNECT first, and gets to --to whatever it asks for.  With
--only-alpn, --to speaks TLS itself, and a client that does not offer the protocol
gets the alert no_application_protocol.  --ready
gets the port.  The journal has a line for each connection: "to ADDRESS PORT",
"connect HOST:PORT" for what a proxy is asked, "tls VERSION SUBJECT" for a
handshake that is done (the subject: of the client's certificate, or "-"), and
"failed WHY" for one that is not.  "refused" is a client with the alert.
"""

import argparse
import os
import resource
import select
import signal
import socket
import ssl
import threading


# An alert of TLS: fatal, 120
NO_APPLICATION_PROTOCOL = bytes([21, 3, 3, 0, 2, 2, 120])


class Front:
    def __init__(self, options):
        self.options = options
        self.journal = os.open(options.journal,
                               os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.context = None
        if options.cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(options.cert, options.key)
            if options.client_ca:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(options.client_ca)
            if options.only:
                version = getattr(ssl.TLSVersion, options.only.replace(".", "_"))
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.minimum_version = version
                context.maximum_version = version
            self.context = context

    def note(self, *words):
        line = " ".join(str(w) for w in words).replace("\n", " ")
        os.write(self.journal, line.encode() + b"\n")

    def serve(self, client):
        """One connection, in a thread of its own."""
        address, port = client.getsockname()[:2]
        self.note("to", address.removeprefix("::ffff:"), port)
        server = None
        try:
            if self.options.proxy:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    byte = client.recv(1)
                    if not byte:
                        return
                    head += byte
                words = head.split()
                self.note("connect", words[1].decode("latin-1"))
                if words[0] != b"CONNECT":
                    client.sendall(b"HTTP/1.1 405 Not a request\r\n"
                                   b"Content-Length: 0\r\n\r\n")
                    return
                client.sendall(b"HTTP/1.1 200 There you are\r\n\r\n")
            if self.options.only_alpn and not self.offers(client):
                client.sendall(NO_APPLICATION_PROTOCOL)
                self.note("refused")
                return
            if self.context:
                client.settimeout(60)
                try:
                    client = self.context.wrap_socket(client, server_side=True)
                except (ssl.SSLError, OSError) as error:
                    self.note("failed", error)
                    return
                client.settimeout(None)
                subject = client.getpeercert().get("subject") if self.options.client_ca else None
                self.note("tls", client.version(),
                          subject[0][0][1] if subject else "-")
            server = socket.create_connection(("127.0.0.1", self.options.to))
            self.pump(client, server)
        except OSError:
            pass
        finally:
            for sock in (client, server):
                if sock:
                    sock.close()

    def offers(self, client):
        """True if the client's first record of TLS has the protocol in its list."""
        size = 5
        while True:
            record = client.recv(size, socket.MSG_PEEK | socket.MSG_WAITALL)
            if len(record) < size:
                return False
            if size > 5:
                break
            size += int.from_bytes(record[3:5], "big")
        name = self.options.only_alpn.encode()
        return bytes([len(name)]) + name in record

    @staticmethod
    def pump(client, server):
        """Passes on what comes, until one of the two ends."""
        while True:
            if isinstance(client, ssl.SSLSocket) and client.pending():
                ready = [client]
            else:
                ready, _, _ = select.select([client, server], [], [])
            for source in ready:
                data = source.recv(65536)
                if not data:
                    return
                (server if source is client else client).sendall(data)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--to", type=int, required=True)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--ready", required=True)
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--client-ca")
    parser.add_argument("--only")
    parser.add_argument("--only-alpn")
    parser.add_argument("--proxy", action="store_true")
    options = parser.parse_args()

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    front = Front(options)
    host, port = options.listen.rsplit(":", 1)
    both = host == "[::]"
    listener = socket.create_server(
        (host.strip("[]"), int(port)), backlog=1024,
        family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
    listener.settimeout(1)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    parent = os.getppid()
    with open(options.ready + ".new", "w") as file:
        file.write("%d\n" % listener.getsockname()[1])
    os.rename(options.ready + ".new", options.ready)
    while os.getppid() == parent:
        try:
            client, _ = listener.accept()
        except TimeoutError:
            continue
        client.settimeout(None)
        threading.Thread(target=front.serve, args=(client,), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
