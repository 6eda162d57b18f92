"""python3 -m outbox_console CONFIG, or --add-user FILE NAME read|operate."""

import getpass
import logging
import socket
import sys

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from . import access, settings, words
from .app import SLOWEST_FORM, Console


class Connection(H11Protocol):
    """A connection of a browser.  It is ended if its request does not come: else others would find no place."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.loop.call_later(SLOWEST_FORM, self.judge, None)

    def judge(self, before):
        """Ends it if its newest request is the one from before, and the browser has to send something."""
        if self.transport.is_closing():
            return
        if self.cycle is before and self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.close()
        else:
            self.loop.call_later(SLOWEST_FORM, self.judge, self.cycle)


class Line(logging.Formatter):
    """A line of the log is one line, whatever names are in it."""

    def formatMessage(self, record):
        return words.visible(" ".join(record.message.split()))


def main():
    """Starts the console, or puts a user into a password file."""
    arguments = sys.argv[1:]
    if len(arguments) == 4 and arguments[0] == "--add-user":
        password = getpass.getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
        try:
            access.add_user(*arguments[1:], password)
        except (OSError, ValueError) as e:
            sys.exit("outbox-console: %s" % e)
        return
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit("outbox-console CONFIG\noutbox-console --add-user FILE NAME read|operate")
    try:
        chosen = settings.read(arguments[0])
    except settings.Wrong as e:
        sys.exit("outbox-console: %s" % e)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    family = socket.AF_INET6 if ":" in chosen.listen else socket.AF_INET
    try:
        listener = socket.create_server((chosen.listen, chosen.port), family=family, backlog=128)
    except OSError as e:
        sys.exit("outbox-console: %s port %d: %s" % (chosen.listen, chosen.port, e.strerror))
    # asyncio does not see that this is TCP.  Without it a second page of a connection waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A line for each request that is none would be for others to write.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.info("The console is at http://%s:%d/", "[%s]" % chosen.listen if ":" in chosen.listen else chosen.listen,
                 listener.getsockname()[1])
    # The peer is judged as it is: a header must not put another address in its place.
    config = uvicorn.Config(Console(chosen).application(), proxy_headers=False, server_header=False, access_log=False,
                            log_config=None, http=Connection, ws="none", limit_concurrency=200, timeout_keep_alive=20)
    uvicorn.Server(config).run(sockets=[listener])


main()
