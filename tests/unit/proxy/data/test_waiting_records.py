"""TLS records of two tenants behind one address: who sends most is refused, and nobody beside."""

import asyncio
from random import Random

from penstock.conf.settings import Settings
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.port import client_of
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.certificates import Certificates
from penstock.proxy.wire.host import Names
from tests.certificates import client_context, server_context
from tests.unit.proxy.wire.tls_ends import End, Wire

NAMES = ("mallory", "victim")


def data_plane() -> DataPlane:
    settings = Settings.model_validate(
        {
            "pools": [{"name": "p", "backends": [{"name": "b", "url": "http://10.0.0.1:1"}]}],
            "tenants": [{"name": name, "keys": [{"key": name * 6}]} for name in NAMES],
            "log": {"access": False},
        }
    )
    loop = asyncio.get_running_loop()
    new = draft(settings, {}, None, Certificates(server_context(), {}))
    return DataPlane(
        configure(new, loop, Names()), loop=loop, rng=Random(1), metrics=Metrics(["p"])
    )


class Tenant:
    """One connection over TLS, whose head the proxy has read."""

    def __init__(self, plane: DataPlane) -> None:
        self.client, self.server = End(client_context(), "localhost"), client_of(plane)
        self.wire = Wire()
        self.server.connection_made(self.wire)
        self.client.tls.connection_made(self.client.wire)

    @classmethod
    async def with_body(cls, plane: DataPlane, name: str, size_bytes: int) -> "Tenant":
        self = cls(plane)
        while not self.client.tls.opened.done() or self.client.wire.sent:
            self.up()
            await asyncio.sleep(0.001)
            self.down()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n"
        length = b"content-length: %d\r\n\r\n" % size_bytes
        self.client.tls.write(head % (name * 6).encode() + length)
        self.up()
        return self

    def send(self, size_bytes: int, record_bytes: int) -> None:
        for _ in range(0, size_bytes, record_bytes):
            self.client.tls.write(b"x" * record_bytes)
        self.up()

    def up(self) -> None:
        sent, self.client.wire.sent = self.client.wire.sent, b""
        if sent:
            self.server.data_received(sent)

    def down(self) -> None:
        sent, self.wire.sent = self.wire.sent, b""
        if sent:
            self.client.tls.data_received(sent)

    @property
    def answer(self) -> bytes:
        self.down()
        return self.client.app.got


async def test_where_memory_is_short_the_largest_reads_of_who_holds_most_are_refused() -> None:
    plane = data_plane()
    victim = await Tenant.with_body(plane, "victim", 60_000)
    attackers = [await Tenant.with_body(plane, "mallory", 60_000) for _ in range(3)]
    victim.send(60_000, 400)  # waits longest
    for attacker in attackers:
        attacker.send(30_000, 10)
    plane.overload.reason = "memory"
    plane.ledger.free(plane.ledger.of("mallory"))
    plane.overload.reason = ""
    for attacker in attackers:
        assert attacker.answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: " in attacker.answer.lower()
        assert not attacker.wire.aborted
    assert (victim.wire.closed, victim.wire.ended) == (False, False)
    async with asyncio.timeout(5):
        while not victim.answer:
            await asyncio.sleep(0)
    assert victim.answer.startswith(b"HTTP/1.1 400 ")  # it was read to its end: no JSON
