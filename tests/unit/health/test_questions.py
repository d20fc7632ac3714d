"""Questions over TLS by transcript: who answers is verified, and what it sends is bounded."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from penstock.health import questions
from penstock.health.probes import Outcome, Prober
from penstock.health.questions import Questions
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pool import ConnectionPool
from penstock.proxy.wire.records import BARREN_MAX
from tests.certificates import client_context, server_context
from tests.unit.proxy.wire.forged_records import Forger
from tests.unit.proxy.wire.tls_ends import End, Wire

URL = "https://localhost:8000"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
# A server sends so many after its handshake.
TICKETS = 2


class Socketed(Wire):
    """Our end of a wire, whose loss is told."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol

    def close(self) -> None:
        if not self.closed:
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)
        super().close()

    def abort(self) -> None:
        self.close()
        super().abort()


class Remote:
    """A backend with several addresses; at those that are `mute` nobody shakes hands."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tls: ssl.SSLContext,
        *addresses: str,
        url: str = URL,
        mute: tuple[str, ...] = (),
        dead: tuple[str, ...] = (),
    ) -> None:
        loop = asyncio.get_running_loop()

        async def look_up(_: str) -> tuple[str, ...]:
            return addresses or ("192.0.2.1",)

        async def sock_connect(_: socket.socket, where: tuple[str, int]) -> None:
            self.tried.append(where[0])
            if where[0] in dead:
                raise ConnectionRefusedError

        async def create_connection(factory: Any, *, sock: socket.socket) -> None:
            sock.close()
            self.protocol = factory()
            self.wire = Socketed(self.protocol)
            self.wires.append(self.wire)
            self.protocol.connection_made(self.wire)
            self.mute = self.tried[-1] in mute
            if not self.mute:
                self.shake()

        monkeypatch.setattr(loop, "sock_connect", sock_connect)
        monkeypatch.setattr(loop, "create_connection", create_connection)
        self.tried: list[str] = []
        self.wires: list[Socketed] = []
        self.mute = True
        self.server = End(server_context())
        pool = ConnectionPool(loop, url, connect_timeout_s=1, names=Names(look_up), tls=tls)
        self.questions = Questions(url, pool)

    def shake(self) -> None:
        self.server = End(server_context())
        self.server.tls.connection_made(self.server.wire)
        self.deliver()

    def deliver(self) -> None:
        server = self.server
        while self.wire.sent or server.wire.sent:
            up, self.wire.sent = self.wire.sent, b""
            if up:
                server.tls.data_received(up)
            down, server.wire.sent = server.wire.sent, b""
            if down and not self.wire.closed:
                self.protocol.data_received(down)

    def probe(self, timeout_s: float = 1.0) -> asyncio.Task[Outcome]:
        return asyncio.create_task(Prober(self.questions).live(timeout_s))

    async def asked(self) -> None:
        """The question has come."""
        while not self.server.app.got:
            await asyncio.sleep(0)
            if not self.mute:
                self.deliver()


@pytest.mark.parametrize(("number", "reason"), [(BARREN_MAX, ""), (2_000, "unreachable")])
async def test_changes_of_keys_before_an_answer_are_taken_by_turns_and_few(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, reason: str
) -> None:
    """Two thousand in one read would hold the loop for a tenth of a second, at each probe."""
    context = client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(tmp_path / "keys")
    remote = Remote(monkeypatch, context)
    probe = remote.probe()
    await remote.asked()
    forger = Forger(tmp_path / "keys", TICKETS, "SERVER")
    updates = b"".join(forger.key_update(asks=False) for _ in range(number - TICKETS))
    remote.protocol.data_received(updates + forger.data(ANSWER))
    assert remote.wire.paused
    assert (await probe).reason == reason
    assert remote.wire.aborted == bool(reason)


@pytest.mark.parametrize("wrong", ["name", "authority"])
async def test_who_is_not_the_backend_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    strict = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = strict if wrong == "authority" else client_context()
    url = URL.replace("localhost", "elsewhere") if wrong == "name" else URL
    remote = Remote(monkeypatch, context, url=url)
    assert (await remote.probe()).reason == "untrusted"
    assert remote.server.app.got == b""
    assert remote.wire.closed


async def test_a_handshake_without_an_answer_is_late_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = Remote(monkeypatch, client_context(), mute=("192.0.2.1",))
    assert (await remote.probe(0.02)).reason == "timeout"
    assert remote.wire.aborted


async def test_a_slow_handshake_has_its_time_beside_a_dead_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "NEXT_ADDRESS_S", 0.02)
    slow, dead = "192.0.2.1", "192.0.2.2"
    remote = Remote(monkeypatch, client_context(), slow, dead, mute=(slow,), dead=(dead,))
    assert not (await remote.probe()).passed
    for _ in range(2):  # from now on
        remote.tried.clear()
        probe = remote.probe()
        while remote.tried != [dead, slow] or remote.wire.aborted:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # longer than an address has that is not the last
        remote.shake()
        remote.mute = False
        await remote.asked()
        remote.server.app.transport.write(ANSWER)
        remote.deliver()
        assert (await probe).passed
        remote.questions.hang_up()


async def test_an_address_without_a_handshake_leaves_time_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "NEXT_ADDRESS_S", 0.02)
    addresses = ("192.0.2.1", "192.0.2.2")
    remote = Remote(monkeypatch, client_context(), *addresses, mute=addresses[:1])
    probe = remote.probe()
    await remote.asked()
    remote.server.app.transport.write(ANSWER)
    remote.deliver()
    assert (await probe).passed
    assert remote.tried == [*addresses]
    assert remote.wires[0].aborted
    assert not remote.wire.closed
    remote.questions.hang_up()
    assert remote.wire.aborted  # closing would wait until the backend takes what is unsent
