"""What a client's connection holds, and until when."""

import asyncio
import gc

from proxy.listener import ClientConnection
from tests.unit.test_waiting_bodies import Wire, plane

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_a_connection_that_is_lost_is_gone_at_once_with_all_it_held() -> None:
    it = plane()
    gc.collect()
    gc.disable()
    try:
        connection = ClientConnection(it)
        connection.connection_made(Wire("192.0.2.1"))
        connection.data_received(b"GET /health HTTP/1.1\r\nx: " + b"a" * 60_000)
        connection.connection_lost(None)
        assert not connection._buffer
        await asyncio.sleep(0)
        del connection
        assert not [one for one in gc.get_objects() if isinstance(one, ClientConnection)]
    finally:
        gc.enable()
