"""What a client's connection holds, and until when."""

import asyncio
import gc

import pytest

from penstock.proxy.data.ending import EARLY_BYTES_MAX, Phase
from penstock.proxy.data.listener import HEAD_S, ClientConnection
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.wire.ledger import STRANGERS_BYTES_MAX
from penstock.proxy.wire.scheduler import AT_ONCE_S, Scheduler
from tests.unit.proxy.data import test_waiting_bodies
from tests.unit.proxy.data.test_waiting_bodies import plane

HEADS_MAX = round(AT_ONCE_S / HEAD_S) + 1
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


def connected(it: DataPlane, wire: Wire) -> tuple[ClientConnection, Wire]:
    connection = ClientConnection(it)
    connection.connection_made(wire)
    return connection, wire


def answers(*wires: Wire) -> int:
    return sum(wire.sent.count(b"HTTP/1.1 ") for wire in wires)


async def test_whoever_sends_many_requests_ahead_delays_its_own() -> None:
    """Each connection's first one is answered as it is read, the next ones by turns."""
    it = plane()
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)  # a step a turn
    many = [Wire("192.0.2.1") for _ in range(50)]
    one = Wire("192.0.2.2")
    for wire in (*many, one):
        connected(it, wire)[0].data_received(HEALTH * 3)
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


async def test_requests_ahead_are_read_by_turns_also_after_a_stalled_write() -> None:
    it = plane()
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)  # a step a turn
    pairs = [connected(it, Wire("192.0.2.1")) for _ in range(20)]
    wires = [wire for _, wire in pairs]
    for connection, _ in pairs:
        connection.pause_writing()
        connection.data_received(HEALTH)
    for connection, _ in pairs:
        connection.resume_writing()
        connection.data_received(b"")  # nor does more that comes let it be read at once
    answered = []
    for _ in range(3):
        await asyncio.sleep(0)
        answered.append(answers(*wires))
    assert answered == [1, 2, 3]
    while len(it.scheduler):
        await asyncio.sleep(0)
    assert answers(*wires) == 20


async def turns_of_the_last(it: DataPlane, wires: list[Wire], tenants: list[str]) -> int:
    """Turns until the last of these connections has its three answers; each tells its tenant."""
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)  # a step a turn
    for wire, tenant in zip(wires, tenants, strict=True):
        connection, _ = connected(it, wire)
        connection.tenant, connection.proven = tenant, bool(tenant)
        connection.data_received(HEALTH * 3)
    turns = 0
    while answers(wires[-1]) < 3:
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_requests_ahead_of_two_tenants_behind_one_address_take_turns() -> None:
    wires = [Wire("192.0.2.1") for _ in range(21)]
    assert await turns_of_the_last(plane(), wires, ["many"] * 20 + ["one"]) < 10


async def test_requests_ahead_of_strangers_take_the_turns_of_one_tenant() -> None:
    """However many their addresses are: they are asked for a key, and have shown none."""
    it = plane()
    it.clients.use(10_000, keyed=True)
    wires = [Wire(f"192.0.{net}.2") for net in range(51)]
    assert await turns_of_the_last(it, wires, [""] * 50 + ["one"]) < 10


async def test_more_than_is_kept_before_a_request_has_its_turn_ends_the_connection() -> None:
    it = plane()
    connection, wire = connected(it, Wire("192.0.2.1"))
    connection.proven = True
    connection.data_received(HEALTH * 2)
    connection.data_received(b"x" * EARLY_BYTES_MAX)
    await asyncio.sleep(0.01)
    assert answers(wire) == 1
    assert connection._phase is Phase.LINGER  # and does not wait for the end of a head


@pytest.mark.parametrize("path", [b"/health", b"/nowhere"])
async def test_too_much_behind_what_is_answered_here_ends_the_connection(path: bytes) -> None:
    """Each answer would copy all of it."""
    it = plane()
    first = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path
    for behind, closes in ((EARLY_BYTES_MAX, False), (EARLY_BYTES_MAX + 1, True)):
        connection, wire = connected(it, Wire("192.0.2.1"))
        connection.data_received(first + b"x" * behind)
        assert answers(wire) == 1
        assert (wire.sent.find(b"connection: close") >= 0) is closes
        assert len(connection._buffer) == (0 if closes else behind)


class Stranger:
    """A client that has sent the beginning of a head, some seconds ago."""

    def __init__(self, it: DataPlane, address: str, size_bytes: int) -> None:
        self.connection, self.wire = connected(it, Wire(address))
        self.connection.data_received(b"GET /x HTTP/1.1\r\nx: ".ljust(size_bytes, b"a"))
        self.connection.began_s -= 5.0

    @property
    def held_bytes(self) -> int:
        return len(self.connection._buffer) * (not self.wire.closed)


async def turns(it: DataPlane) -> None:
    """Let the heads be read that wait for their turn."""
    while len(it.scheduler):
        await asyncio.sleep(0)


async def test_long_heads_that_do_not_end_take_little_memory_and_no_room_from_others() -> None:
    it = plane()
    many = [Stranger(it, "192.0.2.1", 65_000) for _ in range(1_000)]
    few = [Stranger(it, "192.0.2.3", 3_000) for _ in range(100)]
    await turns(it)
    assert sum(one.held_bytes for one in many) <= STRANGERS_BYTES_MAX
    assert not any(one.wire.sent or one.wire.closed for one in few)  # ordinary ones are not counted
    other = Stranger(it, "192.0.2.2", 60_000)
    await turns(it)
    assert not other.wire.sent
    other.connection.data_received(b"\r\nhost: x\r\n\r\n")
    assert other.wire.sent.startswith(b"HTTP/1.1 404 ")
    assert other.connection.body_bytes == 0
    assert it.bodies.held_bytes == 0
    for one in (*many[:500], *few, other):
        one.connection.connection_lost(None)
    for one in many[500:]:
        one.connection.eof_received()
        one.connection.connection_lost(None)
    assert it.ledger.held_bytes == 0


async def test_the_body_after_a_long_head_is_counted_as_one() -> None:
    it = plane()
    sender = Stranger(it, "192.0.2.1", 60_000)
    sender.connection._buffer = sender.connection._buffer.replace(
        b"GET /x ", b"POST /v1/completions "
    )
    assert it.ledger.held_bytes == 60_000
    sender.connection.data_received(b"\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
    head = sender.connection._head
    assert head is not None
    assert (it.ledger.held_bytes, it.bodies.held_bytes) == (0, head.size_bytes + 3)
    sender.connection.connection_lost(None)
    assert it.bodies.held_bytes == 0


async def test_when_memory_is_short_long_heads_give_way() -> None:
    it = plane()
    one = Stranger(it, "192.0.2.1", 60_000)
    it.ledger.free(1)
    assert one.wire.aborted
    assert it.ledger.held_bytes == 0


BEGUN = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc"


@pytest.mark.parametrize("sent", [b"", BEGUN])
async def test_whose_waiting_bytes_find_no_room_is_told_when_to_retry(sent: bytes) -> None:
    """Its head may be among the waiting bytes."""
    it = plane()
    it.overload.observe(0.0, 0.25, 0.0, 0.0, 100, 100)
    it.overload.reason = "" if sent else "memory"
    connection, wire = connected(it, Wire("192.0.2.1"))
    connection.data_received(sent)
    connection.give_way(asked=True)
    assert wire.sent.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: " in wire.sent.lower()
    assert it.bodies.held_bytes == 0


UNKNOWN = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_nor_are_more_ends_of_heads_read_in_a_turn(cut: int) -> None:
    it = plane()
    pairs = [connected(it, Wire("192.0.2.1")) for _ in range(2 * HEADS_MAX)]
    wires = [wire for _, wire in pairs]
    for connection, _ in pairs:
        connection.data_received(UNKNOWN[:-cut])
        await turns(it)
    await asyncio.sleep(0)
    for connection, _ in pairs:
        connection.data_received(UNKNOWN[-cut:])
    assert answers(*wires) <= HEADS_MAX
    await turns(it)
    assert answers(*wires) == len(wires)


async def test_long_heads_that_wait_are_counted() -> None:
    it = plane()
    long_head = UNKNOWN[:-2] + b"x: " + b"a" * 60_000 + b"\r\n\r\n"
    pairs = [connected(it, Wire("192.0.2.1")) for _ in range(20)]
    wires = [wire for _, wire in pairs]
    for connection, _ in pairs:
        connection.data_received(long_head)
    late = sum(not wire.sent for wire in wires)
    assert it.ledger.of("192.0.2.1") == late * len(long_head) > 0
    await turns(it)
    assert answers(*wires) == len(wires)
    assert not it.ledger.of("192.0.2.1")


async def test_of_many_heads_in_a_turn_some_wait_and_are_not_read_meanwhile() -> None:
    it = plane()
    pairs = [connected(it, Wire("192.0.2.1")) for _ in range(4 * HEADS_MAX)]
    wires = [wire for _, wire in pairs]
    for connection, _ in pairs:
        connection.data_received(UNKNOWN)
    assert answers(*wires) == HEADS_MAX
    late = [wire for wire in wires if not wire.sent]
    assert not any(wire.reading for wire in late)
    assert not it.ledger.of("192.0.2.1")  # ordinary heads are not counted
    pairs[-1][0].eof_received()
    pairs[-1][0].connection_lost(None)
    other = Wire("192.0.2.2")
    connected(it, other)[0].data_received(UNKNOWN)
    while not other.sent:
        await asyncio.sleep(0)
    assert answers(*wires) < len(wires) - 1  # it did not wait for all of them
    await turns(it)
    assert answers(*wires) == len(wires) - 1
    assert all(wire.reading for wire in wires[:-1])


@pytest.mark.parametrize("part", [b"x: a\r", b"\rx: a", b"\nx: a"])
async def test_a_long_head_is_searched_once_however_small_its_parts(part: bytes) -> None:
    """A line end may be cut, and a bare one is found where it comes."""
    it = plane()
    connection, wire = connected(it, Wire("192.0.2.1"))
    connection.data_received(b"GET /x HTTP/1.1\r\n")
    for byte in b"host: x\r\nx: " + b"a" * 5_000 + b"\r\n":
        connection.data_received(bytes([byte]))
        await turns(it)
    assert connection._searched_bytes == len(connection._buffer)
    assert not wire.sent
    connection.data_received(part)
    await turns(it)
    if part.endswith(b"\r"):
        connection.data_received(b"\n\r\n")
        await turns(it)
    assert wire.sent.startswith(b"HTTP/1.1 404" if part.endswith(b"\r") else b"HTTP/1.1 400")
