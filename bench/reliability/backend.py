"""A backend with endless streams. `python -m penstock.bench.reliability.backend` prints its port.

A paced stream has an event every PACE_S, PACE_SLOW_S or PACE_RARE_S, that tells when it was sent.
A flood comes as fast as it is read; unlike the simulated servers this backend stops writing when
nobody reads, so that what a stalled reader costs is what the proxy holds. Any other request is read
to its end and answered with a small JSON object.
"""

import asyncio
import re
import socket
from time import monotonic
from typing import Final

import uvloop

from penstock.bench.client import HOST, post
from penstock.bench.overhead.answers import STREAM_HEAD, chunk

PACE_S: Final = 0.002
PACE_SLOW_S: Final = 0.005
PACE_RARE_S: Final = 0.1
STAMP: Final = re.compile(rb'"at":([0-9.]+)')
# Small, so that the kernel's memory is that of the proxy's sockets.
SEND_BUFFER_BYTES: Final = 16_384
_PACED: Final = b"x-stream: paced\r\n"
_PACED_SLOWLY: Final = b"x-stream: slow\r\n"
PACED_RARELY: Final = b"x-stream: rare\r\n"
_FLOOD: Final = b"x-stream: flood\r\n"
# Large events: a thousand streams of small ones would take the proxy longer than a stall may last.
_BLOCK: Final = 12 * chunk(
    b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
    % (b"x" * 4_096)
)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_MODELS: Final = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_JSON: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_MODELS), _MODELS)
)


def request(*, stream: bool, headers: bytes = b"") -> bytes:
    """A chat request for this backend."""
    content = b'{"model":"m","stream":%b,"messages":[{"role":"user","content":"x"}]}'
    return post("/v1/chat/completions", content % (b"true" if stream else b"false"), headers)


PACED: Final = request(stream=True, headers=_PACED)
PACED_SLOWLY: Final = request(stream=True, headers=_PACED_SLOWLY)
FLOOD: Final = request(stream=True, headers=_FLOOD)
PLAIN: Final = request(stream=False)


async def _connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            match = _LENGTH.search(head)
            left = int(match[1]) if match else 0
            while left:
                left -= len(await reader.read(min(left, 262_144)))
            if _PACED in head:
                await _pace(writer, PACE_S)
            elif _PACED_SLOWLY in head:
                await _pace(writer, PACE_SLOW_S)
            elif PACED_RARELY in head:
                await _pace(writer, PACE_RARE_S)
            elif _FLOOD in head:
                await _flood(writer)
            else:
                writer.write(_JSON)
    except (OSError, EOFError):
        pass
    finally:
        writer.transport.abort()


async def _pace(writer: asyncio.StreamWriter, pace_s: float) -> None:
    writer.write(STREAM_HEAD)
    next_s = monotonic()
    while not writer.is_closing():
        event = (
            b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],'
            b'"at":%.6f}\n\n' % monotonic()
        )
        writer.write(chunk(event))
        next_s = max(next_s + pace_s, monotonic())
        await asyncio.sleep(next_s - monotonic())


async def _flood(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD)
    while not writer.is_closing():
        writer.write(_BLOCK)
        await writer.drain()
        await asyncio.sleep(0)  # a block a turn of the loop: all streams flow alike


async def _main() -> None:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # inherited
    sock.bind((HOST, 0))
    server = await asyncio.start_server(_connected, sock=sock, limit=1_048_576, backlog=4_096)
    print(sock.getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main())
