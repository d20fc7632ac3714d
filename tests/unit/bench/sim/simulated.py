"""What a simulated server sends back for a request, without a socket."""

import asyncio
import re

from penstock.bench.sim.connection import Connection
from penstock.bench.sim.server import SimServer
from tests.unit.proxy.wire.transport import Transport

TURNS_MAX = 2_000


async def simulated(server: SimServer, request: bytes) -> bytes:
    """All that comes until the answer ends."""
    transport = Transport()
    connection = Connection(server)
    connection.connection_made(transport)
    connection.data_received(request)
    for _ in range(TURNS_MAX):
        if _ended(transport):
            break
        await asyncio.sleep(0)
    server.pump.stop()
    connection.connection_lost(None)
    return transport.sent


def _ended(transport: Transport) -> bool:
    head, _, body = transport.sent.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    if length:
        return len(body) == int(length[1])
    return transport.closed or body.endswith(b"\r\n0\r\n\r\n")
