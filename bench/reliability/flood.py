"""A backend that streams without end, as fast as it is read. `python -m bench.reliability.flood`.

Unlike the simulated servers it stops writing when nobody reads, so that what a
stalled reader costs is what the proxy holds. Prints its port.
"""

import asyncio
import re
import socket
from typing import Final, cast

import uvloop

from bench.overhead import answers

# Small, so that the kernel's memory is that of the proxy's sockets.
SEND_BUFFER_BYTES: Final = 16_384
_STREAM: Final = re.compile(rb'"stream" *: *true')
_BLOCK: Final = answers.TOKEN_CHUNK * 256


class FloodConnection(asyncio.Protocol):
    """Answers probes, and any stream with tokens until the connection ends."""

    def __init__(self) -> None:
        self._transport = cast(asyncio.Transport, None)
        self._flows = False
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._got.endswith((b"}", b"\r\n\r\n")):
            return
        request, self._got = self._got, b""
        if _STREAM.search(request):
            self._transport.write(answers.STREAM_HEAD)
            self._flows = True
            self._flow()
        elif request.startswith(b"POST "):
            self._transport.write(answers.PLAIN)
        elif request.startswith(b"GET /v1/models"):
            self._transport.write(answers.MODELS)
        else:
            self._transport.write(answers.HEALTHY)

    def pause_writing(self) -> None:
        self._flows = False

    def resume_writing(self) -> None:
        self._flows = True
        self._flow()

    def _flow(self) -> None:
        """One block a turn of the loop, so that all streams flow alike."""
        if self._flows and not self._transport.is_closing():
            self._transport.write(_BLOCK)
            asyncio.get_running_loop().call_soon(self._flow)


async def _serve() -> None:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # inherited
    sock.bind(("127.0.0.1", 0))
    server = await asyncio.get_running_loop().create_server(
        FloodConnection, sock=sock, backlog=4_096
    )
    print(sock.getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
