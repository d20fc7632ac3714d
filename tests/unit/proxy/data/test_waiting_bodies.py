"""A large body that waits until it is read: for how many turns, and for how long."""

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from time import monotonic
from typing import Any

import orjson
import pytest

from penstock.balancing.outline import LARGE_BYTES
from penstock.conf.settings import Settings
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.data.exchange import JSON_BYTE_S, SMALL_BYTES
from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.data.memory import Memory
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.deadline import Clock
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.scheduler import AT_ONCE_S, Scheduler
from tests.unit.proxy.wire.transport import Transport

BODY = orjson.dumps({"prompt": "word " * 110_000})
# Each takes a whole step: no other fits into what is left of the turn.
MIDDLE = orjson.dumps({"prompt": [{"a": 1}] * 25_000})


class Wire(Transport):
    """Of a client at this address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self.unsent_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else (self._address, 1)

    def setsockopt(self, *option: object) -> None:
        """Before a reset."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


class Sender:
    """A client that has sent a whole body to a proxy without a backend."""

    def __init__(self, plane: DataPlane, address: str, *fields: bytes, body: bytes = BODY) -> None:
        self.wire = Wire(address)
        self.connection = ClientConnection(plane)
        self.connection.connection_made(self.wire)
        length = b"content-length: %d" % len(body)
        lines = (b"POST /v1/completions HTTP/1.1", b"host: x", length, *fields, b"", b"")
        self.connection.data_received(b"\r\n".join(lines) + body)


def plane(
    now: Callable[[], float] = monotonic, memory: Memory | None = None, **settings: Any
) -> DataPlane:
    """The data plane before one backend, which nobody dials. `settings`: more sections."""
    loop = asyncio.get_running_loop()
    backend = {"name": "b", "url": "http://10.0.0.1:1"}
    asked = Settings.model_validate(
        {"pools": [{"name": "p", "backends": [backend]}], "log": {"access": False}, **settings}
    )
    return DataPlane(
        configure(draft(asked, {}, None), loop, Names()),
        loop=loop,
        rng=Random(1),
        metrics=Metrics(["p"]),
        now=now,
        memory=memory,
    )


async def test_a_body_waits_for_a_few_turns_however_many_there_are() -> None:
    """Where many large bodies arrive a turn is long, and there are a hundred slices in one."""
    it = plane()
    it.scheduler = Scheduler(it.loop, now=count(step=0.0002).__next__)  # what a step takes
    many = [Sender(it, "192.0.2.1") for _ in range(50)]
    assert len(it.scheduler) >= len(many)
    one = Sender(it, "192.0.2.2")
    turns = 0
    while not one.wire.sent:
        await asyncio.sleep(0)
        turns += 1
    assert turns < len(BODY) // 16_384
    assert one.wire.sent.startswith(b"HTTP/1.1 503 ")
    assert not any(sender.wire.sent for sender in many)


async def test_whose_client_has_waited_long_enough_waits_no_more() -> None:
    clock = Clock()
    it = plane(clock.now)
    hurried = Sender(it, "192.0.2.1", b"x-request-timeout: 5")
    patient = Sender(it, "192.0.2.1")
    clock.slept(-6.0)  # time passes
    while not patient.wire.sent:
        await asyncio.sleep(0)
    assert hurried.wire.sent.startswith(b"HTTP/1.1 408 ")
    assert patient.wire.sent.startswith(b"HTTP/1.1 503 ")
    for sender in (hurried, patient):
        sender.connection.connection_lost(None)
    assert it.bodies.held_bytes == 0


async def test_of_bodies_that_are_whole_in_one_turn_few_are_read_in_it() -> None:
    """Just below the size that is read by slices: a thousand would hold the loop for seconds."""
    it = plane()
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)  # a step a turn
    many = [Sender(it, "192.0.2.1", body=MIDDLE) for _ in range(50)]
    read = sum(bool(sender.wire.sent) for sender in many)
    assert read * len(MIDDLE) * JSON_BYTE_S <= AT_ONCE_S
    small = Sender(it, "192.0.2.2", body=b'{"prompt":"a"}')
    one = Sender(it, "192.0.2.2", body=b'{"prompt":"%b"}' % (b"a" * SMALL_BYTES))
    assert not one.wire.sent
    for turn in range(1, 60):
        await asyncio.sleep(0)
        assert sum(bool(sender.wire.sent) for sender in many) <= turn + 1
        assert (small.wire.sent and one.wire.sent) or turn < 5  # every second step is its
    assert all(sender.wire.sent.startswith(b"HTTP/1.1 ") for sender in (*many, one))
    assert len(it.scheduler) == 0
    for sender in (*many, one, small):
        sender.connection.connection_lost(None)
    assert it.bodies.held_bytes == 0


@pytest.mark.parametrize("text", [b'{"type": "image_url"}', b'"data:;base64,"'])
async def test_many_small_bodies_with_media_delay_their_own_client(text: bytes) -> None:
    """They may be a hundred times as dear as text. Another client's text does not wait."""
    it = plane()
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)  # a step a turn
    body = b'{"messages":[{"type": "file"},%b]}' % text
    many = [Sender(it, "192.0.2.1", body=body) for _ in range(20)]
    assert not any(sender.wire.sent for sender in many)
    other = Sender(it, "192.0.2.2", body=b'{"prompt":"a"}')
    assert other.wire.sent.startswith(b"HTTP/1.1 503 ")
    media = Sender(it, "192.0.2.3", body=body)
    for turn in range(1, 24):
        await asyncio.sleep(0)
        assert sum(bool(sender.wire.sent) for sender in many) <= turn
        assert media.wire.sent or turn < 4  # every second step is its
    for sender in (*many, other, media):
        assert sender.wire.sent.startswith(b"HTTP/1.1 503 ")
        sender.connection.connection_lost(None)


async def test_a_large_body_is_not_begun_in_the_read_that_ends_it() -> None:
    """Of one that is no object, the first slice says so."""
    it = plane()
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)
    senders = [Sender(it, "192.0.2.1", body=b"[" * (LARGE_BYTES + 1)) for _ in range(3)]
    for turn in range(4):
        assert sum(bool(sender.wire.sent) for sender in senders) == turn
        await asyncio.sleep(0)
    for sender in senders:
        assert sender.wire.sent.startswith(b"HTTP/1.1 400 ")
        sender.connection.connection_lost(None)
