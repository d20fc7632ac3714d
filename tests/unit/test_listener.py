"""What a client's connection holds, and until when."""

import asyncio
import gc

import pytest

from proxy.listener import EARLY_BYTES_MAX, ClientConnection
from proxy.rota import Rota
from tests.unit import test_waiting_bodies
from tests.unit.test_waiting_bodies import plane

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class Wire(test_waiting_bodies.Wire):
    def can_write_eof(self) -> bool:
        return False


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


def answers(*wires: Wire) -> int:
    return sum(wire.sent.count(b"HTTP/1.1 ") for wire in wires)


async def test_whoever_sends_many_requests_ahead_delays_its_own() -> None:
    """Each connection's first one is answered as it is read, the next ones by turns."""
    it = plane()
    it.rota = Rota(it.loop)  # a step a turn
    many = [Wire("192.0.2.1") for _ in range(50)]
    one = Wire("192.0.2.2")
    connections = []
    for wire in (*many, one):
        connections.append(ClientConnection(it))
        connections[-1].connection_made(wire)
        connections[-1].data_received(HEALTH * 3)
    assert answers(*many, one) == 51
    turns = 0
    while answers(one) < 3:
        await asyncio.sleep(0)
        turns += 1
    assert turns < 10
    assert answers(*many) <= 50 + turns
    while answers(*many) < 150:
        await asyncio.sleep(0)
        turns += 1
    assert turns < 110
    for connection in connections:
        connection.connection_lost(None)


@pytest.mark.parametrize("path", [b"/health", b"/nowhere"])
async def test_too_much_behind_what_is_answered_here_ends_the_connection(path: bytes) -> None:
    """Each answer would copy all of it."""
    it = plane()
    first = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path
    for behind, closes in ((EARLY_BYTES_MAX, False), (EARLY_BYTES_MAX + 1, True)):
        wire, connection = Wire("192.0.2.1"), ClientConnection(it)
        connection.connection_made(wire)
        connection.data_received(first + b"x" * behind)
        assert answers(wire) == 1
        assert (wire.sent.find(b"connection: close") >= 0) is closes
        assert len(connection._buffer) == (0 if closes else behind)
        connection.connection_lost(None)
