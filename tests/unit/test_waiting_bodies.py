"""A large body that waits until it is read: for how many turns, and for how long."""

import asyncio
from random import Random
from typing import Any

import orjson

from conf.settings import Settings
from proxy.configuration import configure, draft
from proxy.host import Names
from proxy.listener import ClientConnection
from proxy.metrics import Metrics
from proxy.plane import DataPlane
from tests.unit.transport import Transport

BODY = orjson.dumps({"prompt": "word " * 110_000})


class Wire(Transport):
    """Of a client at this address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._address, 1)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class Sender:
    """A client that has sent a whole body to a proxy without a backend."""

    def __init__(self, plane: DataPlane, address: str, *fields: bytes) -> None:
        self.wire = Wire(address)
        self.connection = ClientConnection(plane)
        self.connection.connection_made(self.wire)
        length = b"content-length: %d" % len(BODY)
        lines = (b"POST /v1/completions HTTP/1.1", b"host: x", length, *fields, b"", b"")
        self.connection.data_received(b"\r\n".join(lines) + BODY)


def plane() -> DataPlane:
    loop = asyncio.get_running_loop()
    backend = {"name": "b", "url": "http://10.0.0.1:1"}
    settings = Settings.model_validate(
        {"pools": [{"name": "p", "backends": [backend]}], "log": {"access": False}}
    )
    configuration = configure(draft(settings, {}, None), loop, Names())
    return DataPlane(configuration, loop=loop, rng=Random(1), metrics=Metrics(["p"]))


async def test_a_body_waits_for_a_few_turns_however_many_there_are() -> None:
    """Where many large bodies arrive a turn is long, and there are a hundred slices in one."""
    it = plane()
    many = [Sender(it, "192.0.2.1") for _ in range(50)]
    assert len(it.rota) == len(many)
    one = Sender(it, "192.0.2.2")
    turns = 0
    while not one.wire.sent:
        await asyncio.sleep(0)
        turns += 1
    assert turns < len(BODY) // 16_384
    assert one.wire.sent.startswith(b"HTTP/1.1 503 ")
    assert len(it.rota) == len(many)
    for sender in many:
        sender.connection.connection_lost(None)
    one.connection.connection_lost(None)


async def test_whose_client_has_waited_long_enough_waits_no_more() -> None:
    it = plane()
    hurried = Sender(it, "192.0.2.1", b"x-request-timeout: 5")
    patient = Sender(it, "192.0.2.1")
    for sender in (hurried, patient):
        sender.connection.slept(-6.0)  # as if it had come earlier
    while not patient.wire.sent:
        await asyncio.sleep(0)
    assert hurried.wire.sent.startswith(b"HTTP/1.1 408 ")
    assert patient.wire.sent.startswith(b"HTTP/1.1 503 ")
    for sender in (hurried, patient):
        sender.connection.connection_lost(None)
    assert it.bodies.held_bytes == 0
