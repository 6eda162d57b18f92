#!/usr/bin/env python3
"""A connection that takes its time: what comes in on one unix socket goes out to
another one later, in both directions.

    delay.py --from PATH --to PATH --ms N
"""

import argparse
import asyncio
import os


async def pump(reader, writer, seconds):
    """Each piece is late by itself: this delays, and does not slow down."""
    queue = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def send():
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0, due - loop.time()))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    sender = asyncio.create_task(send())
    try:
        while True:
            data = await reader.read(65536)
            queue.put_nowait((loop.time() + seconds, data))
            if not data:
                break
        await sender
    except OSError:
        sender.cancel()
        writer.close()


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--ms", type=float, required=True)
    options = parser.parse_args()
    parent = os.getppid()

    async def accept(reader, writer):
        try:
            there, back = await asyncio.open_unix_connection(options.to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, back, options.ms / 1000),
                             pump(there, writer, options.ms / 1000))

    await asyncio.start_unix_server(accept, options.source)
    while os.getppid() == parent:       # a test that was killed leaves nothing
        await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main())
