"""Questions by transcript: what is an answer and what is none, and who is believed over TLS."""

import asyncio
import gc
import ssl
from pathlib import Path
from typing import Any

import pytest

from penstock.health.probes import Outcome, Prober
from penstock.proxy.wire import dial
from penstock.proxy.wire.connection import HEAD_BYTES_MAX
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pool import ConnectionPool
from penstock.proxy.wire.questions import Answer
from tests.certificates import client_context, server_context
from tests.unit.proxy.wire.dialing import by_hand
from tests.unit.proxy.wire.forged_records import Forger
from tests.unit.proxy.wire.test_connection import BackendTransport, Socket
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
        self._socket = Socket()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket if name == "socket" else super().get_extra_info(name, default)

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
        async def look_up(_: str) -> tuple[str, ...]:
            return addresses or ("192.0.2.1",)

        def dialed(address: str) -> None:
            self.tried.append(address)
            if address in dead:
                raise ConnectionRefusedError

        def connected(protocol: Any) -> None:
            self.protocol = protocol
            self.wire = Socketed(self.protocol)
            self.wires.append(self.wire)
            self.protocol.connection_made(self.wire)
            self.mute = self.tried[-1] in mute
            if not self.mute:
                self.shake()

        loop = by_hand(monkeypatch, dialed, connected)
        self.tried: list[str] = []
        self.wires: list[Socketed] = []
        self.mute = True
        self.server = End(server_context())
        pool = ConnectionPool(loop, url, connect_timeout_s=1, names=Names(look_up), tls=tls)
        self.questions = pool.questions()

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
                turns: Any = server.tls._reads.rota.loop
                turns.run()
            down, server.wire.sent = server.wire.sent, b""
            if down and not self.wire.closed:
                self.protocol.data_received(down)

    def probe(self, timeout_s: float = 1.0) -> asyncio.Task[Outcome]:
        return asyncio.create_task(Prober(self.questions).live(timeout_s))

    def answer(self) -> None:
        self.server.app.transport.write(ANSWER)
        self.deliver()

    async def asked(self) -> None:
        """The question has come."""
        while not self.server.app.got:
            await asyncio.sleep(0)
            if not self.mute:
                self.deliver()


async def test_changes_of_keys_before_an_answer_are_taken_by_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Thousands in one read would hold the loop for a tenth of a second, at each probe."""
    context = client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(tmp_path / "keys")
    remote = Remote(monkeypatch, context)
    probe = remote.probe(20.0)
    await remote.asked()
    forger = Forger(tmp_path / "keys", TICKETS, "SERVER")
    remote.protocol.data_received(forger.key_updates(500) + forger.data(ANSWER))
    assert remote.wire.paused
    assert (await probe).passed


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


@pytest.mark.once
async def test_a_slow_handshake_has_its_time_beside_a_dead_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "NEXT_ADDRESS_S", 0.02)
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
        remote.answer()
        assert (await probe).passed
        remote.questions.hang_up()


@pytest.mark.once
async def test_an_address_without_a_handshake_leaves_time_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial, "NEXT_ADDRESS_S", 0.02)
    addresses = ("192.0.2.1", "192.0.2.2")
    remote = Remote(monkeypatch, client_context(), *addresses, mute=addresses[:1])
    probe = remote.probe()
    await remote.asked()
    remote.answer()
    assert (await probe).passed
    assert remote.tried == [*addresses]
    assert remote.wires[0].aborted
    assert not remote.wire.closed
    remote.questions.hang_up()
    assert remote.wire.aborted  # closing would wait until the backend takes what is unsent


# Answers ---------------------------------------------------------------------------------------

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
MIB = 1_048_576


class Link:
    """A client of a backend without TLS, and the connections that it has opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def connected(protocol: Any) -> None:
            self.protocols.append(protocol)
            self.transports.append(BackendTransport())
            protocol.connection_made(self.transports[-1])

        loop = by_hand(monkeypatch, lambda _: None, connected)
        self.transports: list[BackendTransport] = []
        self.protocols: list[Any] = []
        pool = ConnectionPool(loop, "http://192.0.2.1:8000/below", connect_timeout_s=1)
        self.questions = pool.questions(b"Bearer k")

    async def ask(self, limit_bytes: int = 100, timeout_s: float = 1.0) -> asyncio.Task[Answer]:
        """Ask, and return when that was sent."""
        opened = sum(transport.sent.count(b"GET ") for transport in self.transports)
        task = asyncio.create_task(self.questions.get(b"/health", timeout_s, limit_bytes))
        while sum(transport.sent.count(b"GET ") for transport in self.transports) == opened:
            await asyncio.sleep(0)
        return task

    async def answered(self, *reads: bytes, limit_bytes: int = 100) -> Answer:
        """Ask, and what was made of that answer."""
        task = await self.ask(limit_bytes)
        for data in reads:
            await self.reads(data)
        return await task

    async def reads(self, data: bytes) -> None:
        if not self.transports[-1].closed:
            self.protocols[-1].data_received(data)
        while not self.transports[-1].reading and not self.transports[-1].closed:
            await asyncio.sleep(0)  # the rest of a long read is taken in turns


@pytest.fixture
async def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    return Link(monkeypatch)


async def test_a_question_goes_below_the_url_with_its_key(link: Link) -> None:
    task = await link.ask()
    head = link.transports[0].sent.split(b"\r\n")
    assert head[0] == b"GET /below/health HTTP/1.1"
    assert {b"host: 192.0.2.1:8000", b"authorization: Bearer k"} < set(head)
    task.cancel()


@pytest.mark.parametrize(
    ("raw", "status", "keeps"),
    [
        (LENGTH, 200, True),
        (CHUNKED, 503, True),
        (HINTS + LENGTH, 200, True),
        (b"HTTP/1.1 204 None\r\n\r\n", 204, True),
        (LENGTH.replace(b"200 OK", b"401 No\r\nConnection: close"), 401, False),
        (LENGTH.replace(b"1.1", b"1.0"), 200, False),
    ],
)
async def test_an_answer_is_read_in_any_split(
    link: Link, raw: bytes, status: int, keeps: bool
) -> None:
    for cut in range(len(raw)):
        answer = await link.answered(*filter(None, (raw[:cut], raw[cut:])))
        assert answer == Answer(status, b"" if status == 204 else b"hello")
        assert link.transports[-1].aborted is not keeps
    assert len(link.transports) == (1 if keeps else len(raw))


@pytest.mark.parametrize("raw", [b"", LENGTH[:-1], CHUNKED[:-1], b"HTTP/1.1 200 OK\r\n", HINTS])
@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_an_answer_that_is_cut_is_none(
    link: Link, raw: bytes, error: Exception | None
) -> None:
    task = await link.ask()
    if raw:
        await link.reads(raw)
    link.protocols[0].connection_lost(error)
    assert await task == Answer(reason="unreachable")


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED_HEAD = HEAD + b"transfer-encoding: chunked\r\n\r\n"
# How each begins, and what follows again and again.
ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 100 C\r\n\r\n"),
    "lines of a head": (HEAD, b"a:b\r\n"),
    "one line of a head": (HEAD + b"a:", b"b"),
    "chunks": (CHUNKED_HEAD, b"1\r\nx\r\n"),
    "one extension of a chunk": (CHUNKED_HEAD + b"1;", b"e"),
    "extensions of chunks": (CHUNKED_HEAD, b"1;e=f\r\nx\r\n"),
    "trailers": (CHUNKED_HEAD + b"0\r\n", b"a:b\r\n"),
}


@pytest.mark.parametrize("read_bytes", [262_144, 1_000])
@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_has_no_end_is_given_up(link: Link, kind: str, read_bytes: int) -> None:
    begin, again = ENDLESS[kind]
    flood = begin + again * (4 * MIB // len(again))
    task = await link.ask(HEAD_BYTES_MAX)
    read = 0
    while not link.transports[0].aborted:
        await link.reads(flood[read : read + read_bytes])
        read += read_bytes
        await asyncio.sleep(0)
    answer = await task
    assert answer.reason or not answer.whole
    assert read <= 12 * HEAD_BYTES_MAX + 262_144  # ten bytes for each one of the body


async def test_a_body_is_taken_up_to_its_limit(link: Link) -> None:
    for part in (LENGTH, LENGTH[:-1]):
        assert await link.answered(part, limit_bytes=3) == Answer(200, b"hel", whole=False)
        assert link.transports[-1].aborted
    assert await link.answered(LENGTH, limit_bytes=5) == Answer(200, b"hello")


async def test_whoever_gives_up_hears_no_late_answer(link: Link) -> None:
    task = await link.ask()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert link.transports[0].aborted
    task = await link.ask(timeout_s=0.001)
    assert await task == Answer(reason="timeout")
    assert link.transports[1].aborted


async def test_a_kept_connection_that_closes_says_nothing_of_the_backend(link: Link) -> None:
    await link.answered(LENGTH)
    task = await link.ask()
    link.protocols[0].connection_lost(None)
    while len(link.transports) < 2:
        await asyncio.sleep(0)
    await link.reads(LENGTH)
    assert (await task).status == 200


async def test_a_refused_certificate_is_told(link: Link) -> None:
    """With TLS 1.3 a backend refuses it after the handshake."""
    task = await link.ask()
    link.protocols[0].connection_lost(ssl.SSLError(1, "certificate required"))
    assert (await task).reason == "untrusted"


async def test_what_was_answered_is_let_go_with_its_connection(link: Link) -> None:
    """Without the collector, which runs once in a long while."""
    gc.collect()
    gc.disable()
    try:
        assert (await link.answered(LENGTH)).status == 200
        link.questions.hang_up()
        link.protocols[0].connection_lost(None)
        link.protocols.clear()
        assert not [each for each in gc.get_objects() if type(each).__name__ == "_Collected"]
    finally:
        gc.enable()
