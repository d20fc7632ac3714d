"""Handshakes with a backend by transcript: a thread that a test moves by hand."""

import asyncio
import errno
import gc
import ssl
import weakref
from typing import Any

import pytest

from penstock.proxy.wire import handshakes as module
from penstock.proxy.wire.handshake_size import CHAIN_BYTES_MAX
from penstock.proxy.wire.handshake_threads import Rank, Work
from penstock.proxy.wire.handshakes import DEAR_FOR_S, DEAR_S, SIZE_BYTES, Handshakes
from tests.certificates import client_context, server_context
from tests.unit.proxy.wire.forged_records import Forger
from tests.unit.proxy.wire.tls_ends import End, Wire, deliver


class Thread:
    """What is to be done beside the loop."""

    def __init__(self) -> None:
        self.works: list[tuple[Work, asyncio.Future[float]]] = []
        self.ranks: list[Rank | None] = []

    def __call__(self, work: Work, rank: Rank | None) -> asyncio.Future[float]:
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.works.append((work, future))
        self.ranks.append(rank)
        return future

    async def run(self) -> None:
        """Do the work that was begun first, then let the loop take what came of it."""
        work, future = self.works.pop(0)
        future.set_result(work())
        await turns()


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class Steps:
    """Steps of one backend's handshakes."""

    def __init__(self) -> None:
        self.thread = Thread()
        self.now_s = 0.0
        self.handshakes = Handshakes(asyncio.get_running_loop(), self.thread, lambda: self.now_s)
        self.called: list[str] = []
        self.ended: dict[str, BaseException | None] = {}
        self.gone: set[str] = set()

    def add(self, name: str, error: OSError | None = None, size_bytes: int = 0) -> None:
        def step() -> None:
            self.called.append(name)
            if error is not None:
                raise error

        def done(outcome: OSError | None) -> None:
            self.ended[name] = outcome

        self.handshakes.add(step, done, lambda: name in self.gone, size_bytes)


async def test_one_thread_takes_all_steps_that_wait() -> None:
    steps = Steps()
    error = ssl.SSLWantReadError()
    steps.add("a")
    steps.add("b", error)
    assert (len(steps.thread.works), steps.called) == (1, [])
    await steps.thread.run()
    assert (steps.called, steps.ended) == (["a", "b"], {"a": None, "b": error})
    assert not steps.thread.works
    steps.add("c")
    await steps.thread.run()
    assert steps.called == ["a", "b", "c"]


async def test_after_a_long_step_other_backends_have_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    steps = Steps()
    steps.add("a")
    steps.add("b")
    await steps.thread.run()
    assert (steps.called, len(steps.thread.works)) == (["a"], 1)
    await steps.thread.run()
    assert (steps.called, len(steps.thread.works)) == (["a", "b"], 0)


async def test_who_left_is_not_waited_for() -> None:
    steps = Steps()
    for name in "abc":
        steps.add(name)
    steps.gone.add("b")
    await steps.thread.run()
    assert (steps.called, list(steps.ended)) == (["a", "c"], ["a", "c"])


async def test_a_backend_has_a_quick_thread_once_it_was_verified_at_little_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu_s = 0.0
    monkeypatch.setattr(module, "thread_time", lambda: cpu_s)
    steps = Steps()
    unknown, dear = Rank(size=1), Rank(dear=True)

    async def rank_of(error: OSError | None, *, cost_s: float = 0.0) -> Rank | None:
        def step() -> None:
            nonlocal cpu_s
            cpu_s += cost_s
            if error is not None:
                raise error

        steps.handshakes.add(step, lambda _: None, lambda: False, SIZE_BYTES + 1)
        await steps.thread.run()
        return steps.thread.ranks[-1]

    assert await rank_of(ssl.SSLWantReadError()) == unknown  # a part of a handshake is none
    assert await rank_of(ssl.SSLCertVerificationError()) == unknown
    assert await rank_of(None) == unknown
    assert await rank_of(None, cost_s=DEAR_S / 2) is None
    assert await rank_of(None, cost_s=DEAR_S * 2) is None
    assert await rank_of(None) == dear
    steps.now_s = DEAR_FOR_S - 1
    assert await rank_of(ssl.SSLWantReadError(), cost_s=DEAR_S * 2) == dear
    steps.now_s = DEAR_FOR_S + 1
    assert await rank_of(None) == dear
    steps.now_s = DEAR_FOR_S * 2
    assert await rank_of(None) is None


async def test_a_thread_that_was_promised_may_be_lacking() -> None:
    steps = Steps()
    steps.add("a")
    _, future = steps.thread.works.pop()
    future.set_exception(RuntimeError())
    await turns()
    assert getattr(steps.ended["a"], "errno", None) == errno.ENOMEM
    steps.add("b")
    await steps.thread.run()
    assert steps.called == ["b"]


async def test_without_a_thread_it_is_our_own_lack() -> None:
    steps = Steps()

    def none(work: Work, rank: Rank | None) -> asyncio.Future[float]:
        raise RuntimeError

    steps.handshakes = Handshakes(asyncio.get_running_loop(), none)
    steps.add("a")
    steps.add("b")
    codes = [getattr(error, "errno", None) for error in steps.ended.values()]
    assert codes == [errno.ENOMEM, errno.ENOMEM]
    client = End(client_context(), "localhost", handshakes=steps.handshakes)
    flight(client)
    await turns()
    assert client.wire.aborted
    client.tls.connection_lost(None)
    assert getattr(client.tls.opened.exception(), "errno", None) == errno.ENOMEM


# A connection to a backend ---------------------------------------------------------------------


def flight(client: End, context: ssl.SSLContext | None = None) -> End:
    """A server whose part of the handshake has come."""
    server = End(context or server_context())
    server.tls.connection_made(server.wire)
    client.tls.connection_made(client.wire)
    deliver(client, server)
    deliver(server, client)
    return server


def dialed(trusted: bool = True, **options: Any) -> tuple[Thread, End]:
    thread = Thread()
    handshakes = Handshakes(asyncio.get_running_loop(), thread)
    context = client_context() if trusted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return thread, End(context, "localhost", handshakes=handshakes, **options)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_loop_takes_no_step_and_reads_nothing_meanwhile(version: ssl.TLSVersion) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    thread = Thread()
    handshakes = Handshakes(asyncio.get_running_loop(), thread)
    client = End(context, "localhost", handshakes=handshakes)
    client.app.greeting = b"GET "
    server = flight(client)
    while not client.tls.opened.done():
        await turns()
        assert (client.wire.sent, client.wire.paused) == (b"", True)
        client.tls.resume_reading()  # as the protocol behind may at any time
        client.tls.resume_writing()
        await turns()
        assert (len(thread.works), client.wire.paused) == (1, True)
        await thread.run()
        assert not client.wire.paused
        deliver(client, server)
        deliver(server, client)
    await turns()
    assert not thread.works  # what comes after is the loop's
    client.tls.write(b"/")
    server.tls.write(b"200")
    deliver(client, server)
    deliver(server, client)
    await turns()
    assert (server.app.got, client.app.got) == (b"GET /", b"200")


async def test_what_comes_while_the_thread_works_is_kept() -> None:
    thread, client = dialed()
    server = End(server_context())
    server.tls.connection_made(server.wire)
    client.tls.connection_made(client.wire)
    deliver(client, server)
    sent = server.wire.sent
    for at in range(0, len(sent), 100):
        client.tls.data_received(sent[at : at + 100])
        await turns()
    assert len(thread.works) == 1
    while thread.works:
        await thread.run()
    assert client.tls.opened.done()
    assert client.tls.opened.exception() is None


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("trusted", [False, True])
async def test_what_an_aborted_handshake_came_to_is_dropped(trusted: bool, late: bool) -> None:
    """The dial was given up, or the backend has left, before or while the thread works."""
    thread, client = dialed(trusted)
    flight(client)
    await turns()
    (work, future), sent = thread.works.pop(), client.wire.sent
    if late:
        work()
    client.tls.abort()
    if not late:
        work()
    future.set_result(0.0)
    await turns()
    assert not client.tls.opened.done()
    client.tls.connection_lost(None)
    assert (client.wire.sent, client.app.got) == (sent, b"")
    assert client.app.lost == [None]
    assert isinstance(client.tls.opened.exception(), ConnectionError)
    assert not thread.works


class Silent(Wire):
    """uvloop's transport after the call that made it was cancelled: it looks open."""

    def write(self, data: Any) -> None:
        if self.aborted:
            raise RuntimeError
        super().write(data)

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("late", [False, True])
async def test_an_aborted_handshake_asks_no_transport_whether_it_is_closed(late: bool) -> None:
    thread, client = dialed()
    client.wire = Silent()
    flight(client)
    await turns()
    (work, future), sent = thread.works.pop(), client.wire.sent
    if late:
        work()
    client.tls.abort()
    if not late:
        work()
    future.set_result(0.0)
    await turns()
    client.app.transport.write(b"x")
    assert client.app.transport.is_closing()
    assert (client.wire.sent, client.tls.opened.done()) == (sent, False)


async def test_a_dial_may_be_aborted_before_it_is_connected() -> None:
    _, client = dialed()
    client.tls.abort()
    assert client.tls.is_closing()


async def test_closing_leaves_the_handshake_to_the_thread() -> None:
    thread, client = dialed()
    flight(client)
    await turns()
    client.app.transport.write(b"early")
    client.app.transport.close()
    assert (client.wire.closed, client.wire.sent) == (True, b"")
    await thread.run()
    assert client.wire.sent == b""


async def test_who_is_not_the_backend_is_told_after_the_thread() -> None:
    thread, client = dialed(trusted=False)
    flight(client)
    await turns()
    assert client.wire.sent == b""
    await thread.run()
    assert client.wire.closed
    assert client.wire.sent  # the alert
    client.tls.connection_lost(None)
    assert isinstance(client.tls.opened.exception(), ssl.SSLCertVerificationError)


async def test_certificates_are_no_more_than_they_need_be_in_the_thread_too() -> None:
    thread, client = dialed()
    client.tls.connection_made(client.wire)
    client.wire.sent = b""
    beginning = b"\x02\x00\xff\x00"  # of a hello of 65,280 bytes
    for _ in range(CHAIN_BYTES_MAX // 8_192):
        client.tls.data_received(b"\x16\x03\x03\x1f\xfb" + beginning.ljust(8_187, b"x"))
        beginning = b""
        await turns()
        await thread.run()
        assert not client.wire.is_closing()
    client.tls.data_received(b"\x16\x03\x03\x00\x01x")
    await turns()
    assert client.wire.aborted
    assert not thread.works


async def test_data_behind_the_handshake_goes_by_turns(tmp_path: Any) -> None:
    """Records that a server sends ahead are the loop's, a slice a turn."""
    context = server_context("localhost", "ahead")
    context.keylog_filename = str(tmp_path / "keys")
    context.num_tickets = 0
    thread, client = dialed()
    server = End(context)
    server.tls.connection_made(server.wire)
    client.tls.connection_made(client.wire)
    deliver(client, server)
    forger = Forger(tmp_path / "keys", 0, "SERVER")
    ahead = b"".join(forger.data(b"%04d" % number) for number in range(200))
    client.tls.data_received(server.wire.sent + ahead)
    await turns()
    await thread.run()
    assert client.tls.opened.done()
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(client.app.got) == 800
    assert client.app.pieces > 5
    assert not client.wire.paused


async def test_a_thread_that_comes_late_finds_nothing() -> None:
    """An executor may queue what it then refuses for want of a thread."""
    steps, works = Steps(), []

    def queued(work: Work, rank: Rank | None) -> asyncio.Future[float]:
        works.append(work)
        raise RuntimeError

    steps.handshakes = Handshakes(asyncio.get_running_loop(), queued)
    steps.add("a")
    works[0]()
    assert (steps.called, list(steps.ended)) == ([], ["a"])


class Wanting:
    """A connection whose step wants more bytes."""

    def step(self) -> None:
        raise ssl.SSLWantReadError

    def stepped(self, error: OSError | None) -> None:
        assert isinstance(error, ssl.SSLWantReadError)


async def test_a_step_that_wants_more_holds_no_connection() -> None:
    """No cycle is left to the collector, which comes seldom."""
    steps, connection = Steps(), Wanting()
    known = weakref.ref(connection)
    gc.collect()
    gc.disable()
    try:
        steps.handshakes.add(connection.step, connection.stepped, lambda: False)
        await steps.thread.run()
        await turns()
        del connection
        assert known() is None
    finally:
        gc.enable()
