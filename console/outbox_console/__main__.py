"""python3 -m outbox_console CONFIG, or --add-user FILE NAME read|operate."""

import getpass
import logging
import sys

import uvicorn

from . import access, settings
from .app import Console


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
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.info("The console is at http://%s:%d/", chosen.listen, chosen.port)
    # The peer is judged as it is: a header must not put another address in its place.
    uvicorn.run(Console(chosen).application(), host=chosen.listen, port=chosen.port, proxy_headers=False, server_header=False,
                access_log=False, log_level="warning", limit_concurrency=200, timeout_keep_alive=20)


main()
