#!/usr/bin/env python3
"""slow.py PORT JOURNAL [SECONDS]: answers 204 to /fast after 0.1 s, and to all else after 14 s,
or so many.  The journal has the time of each request to /fast."""
import asyncio
import resource
import sys
import time

FAST, SLOW = 0.1, 14


async def serve(reader, writer, journal, late):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower()
            length = head.partition("\ncontent-length:")[2].partition("\r")[0]
            await reader.readexactly(int(length or 0))
            fast = head.split()[1] == "/fast"
            if fast:
                journal.write(f"{time.time():.3f}\n")
            await asyncio.sleep(FAST if fast else late)
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    late = float(sys.argv[3]) if len(sys.argv) > 3 else SLOW
    with open(sys.argv[2], "w", buffering=1) as journal:
        server = await asyncio.start_server(lambda r, w: serve(r, w, journal, late), "127.0.0.1",
                                            int(sys.argv[1]), backlog=4096)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
