"""`python -m bench.reliability.pacer`: a backend whose streams tell when each event was sent.

It prints its port. A stream has an event every PACE_S with the clock's reading in it; any other
request is read to its end and answered with a small JSON object.
"""

import asyncio
import re
from time import monotonic
from typing import Final

import uvloop

PACE_S: Final = 0.002
STAMP: Final = re.compile(rb'"at":([0-9.]+)')
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_MODELS: Final = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
# A request with this in its head is the stream; no body holds it.
WATCHED: Final = b"x-watched: yes"
_STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


async def _connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            match = _LENGTH.search(head)
            left = int(match[1]) if match else 0
            while left:
                left -= len(await reader.read(min(left, 262_144)))
            if WATCHED in head:
                await _pace(writer)
                return
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(_MODELS), _MODELS)
            )
    except (OSError, EOFError):
        pass
    finally:
        writer.transport.abort()


async def _pace(writer: asyncio.StreamWriter) -> None:
    writer.write(_STREAM)
    next_s = monotonic()
    while not writer.is_closing():
        event = (
            b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],'
            b'"at":%.6f}\n\n' % monotonic()
        )
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        next_s = max(next_s + PACE_S, monotonic())
        await asyncio.sleep(next_s - monotonic())


async def _main() -> None:
    server = await asyncio.start_server(_connected, "127.0.0.1", 0, limit=1_048_576)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main())
