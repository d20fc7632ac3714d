"""Handshakes in threads: which thread, in which order, and by transcript with a backend."""

import asyncio
import errno
import gc
import math
import ssl
import time
import weakref
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from penstock.proxy.wire import handshakes as module
from penstock.proxy.wire.handshakes import (
    DEAR_FOR_S,
    DEAR_S,
    PARTIES_MAX,
    SIZE_BYTES,
    ClientHandshakes,
    Handshakes,
    HandshakeThreads,
)
from penstock.proxy.wire.tls import CHAIN_BYTES_MAX
from tests.certificates import client_context, server_context
from tests.unit.proxy.wire.forged_records import Forger
from tests.unit.proxy.wire.tls_ends import End, Wire, connect, deliver


class Thread:
    """Threads that a test moves by hand: `HandshakeThreads` without threads."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.now_s = 0.0
        self.works: list[Handshakes] = []
        self.ranks: list[tuple[bool, int] | None] = []  # (dear, size), or None for a quick one

    def now(self) -> float:
        return self.now_s

    def begin(self, peer: Handshakes) -> None:
        self.works.append(peer)
        self.ranks.append(None if peer.quick else (peer.dear, peer.size))

    async def run(self) -> None:
        """Do the work that was begun first, then let the loop take what came of it."""
        peer = self.works.pop(0)
        took_s = peer.work()
        await turns()
        peer.ended(took_s)
        await turns()

    async def abort(self, client: End, late: bool) -> None:
        """Abort it before or after the work that was begun last."""
        peer = self.works.pop()
        for step in (peer.work, client.tls.abort) if late else (client.tls.abort, peer.work):
            step()
        peer.ended(0.0)
        await turns()


def threads_of(thread: Thread) -> HandshakeThreads:
    stands_in: Any = thread
    return stands_in  # type: ignore[no-any-return]


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class Steps:
    """Steps of one backend's handshakes."""

    def __init__(self) -> None:
        self.thread = Thread()
        self.handshakes = Handshakes(threads_of(self.thread))
        self.called: list[str] = []
        self.ended: dict[str, BaseException | None] = {}
        self.gone: set[str] = set()

    def add(self, name: str, error: OSError | None = None, size_bytes: int = 0) -> None:
        def step() -> bool:
            self.called.append(name)
            if error is not None:
                raise error
            return True

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
    unknown, dear = (False, 1), (True, 1)

    async def rank_of(error: OSError | None, *, cost_s: float = 0.0) -> tuple[bool, int] | None:
        def step() -> bool:
            nonlocal cpu_s
            cpu_s += cost_s
            if error is not None:
                raise error
            return True

        steps.handshakes.add(step, lambda _: None, lambda: False, SIZE_BYTES + 1)
        await steps.thread.run()
        return steps.thread.ranks[-1]

    assert await rank_of(ssl.SSLWantReadError()) == unknown  # a part of a handshake is none
    assert await rank_of(ssl.SSLCertVerificationError()) == unknown
    assert await rank_of(None) == unknown
    assert await rank_of(None, cost_s=DEAR_S / 2) is None
    assert await rank_of(None, cost_s=DEAR_S * 2) is None
    assert await rank_of(None) == dear
    steps.thread.now_s = DEAR_FOR_S - 1
    assert await rank_of(ssl.SSLWantReadError(), cost_s=DEAR_S * 2) == dear
    steps.thread.now_s = DEAR_FOR_S + 1
    assert await rank_of(None) == dear
    steps.thread.now_s = DEAR_FOR_S * 2
    assert await rank_of(None) is None


async def test_without_a_thread_it_is_our_own_lack() -> None:
    """Also if one comes late: an executor may queue what it then refuses."""
    steps = Steps()
    steps.add("a")
    steps.add("b")
    (peer,) = steps.thread.works
    peer.ended(None)
    peer.work()
    codes = [getattr(error, "errno", None) for error in steps.ended.values()]
    assert (codes, steps.called) == ([errno.ENOMEM, errno.ENOMEM], [])
    steps.thread.works.clear()
    steps.add("c")
    await steps.thread.run()
    assert steps.called == ["c"]
    client = End(client_context(), "localhost", handshakes=steps.handshakes)
    flight(client)
    steps.thread.works[0].ended(None)
    assert client.wire.aborted
    client.tls.connection_lost(None)
    assert getattr(client.tls.opened.exception(), "errno", None) == errno.ENOMEM


# Which thread ----------------------------------------------------------------------------------


class Threads:
    """Peers with one step each, and in which order these were done."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.threads = HandshakeThreads(asyncio.get_running_loop())
        self.done: list[str] = []

    def add(
        self,
        name: str,
        *,
        verified: bool = False,
        dear: bool = False,
        size: int = 0,
        takes_s: float = 0.0,
        costs_s: float = 0.0,
    ) -> asyncio.Future[None]:
        peer = Handshakes(self.threads)
        peer._verified = verified
        peer._dear_until_s = math.inf if dear else 0.0
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def step() -> bool:
            time.sleep(takes_s)
            self.cpu_s += costs_s
            self.done.append(name)
            return False

        def stepped(error: OSError | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        peer.add(step, stepped, lambda: False, size * SIZE_BYTES)
        return done


@pytest.fixture
async def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    threads = Threads()
    monkeypatch.setattr(module, "thread_time", lambda: threads.cpu_s)
    return threads


async def test_many_dear_backends_delay_no_verified_one(threads: Threads) -> None:
    dear = [threads.add("dear", dear=True, takes_s=0.05, costs_s=0.01) for _ in range(20)]
    began_s = time.perf_counter()
    for _ in range(5):
        await threads.add("verified", verified=True)
    waited_s = time.perf_counter() - began_s
    print(f"five verified ones waited {waited_s * 1000:.1f} ms")
    assert waited_s < 0.5
    assert threads.done.count("dear") < 15
    assert not dear[-1].done()


async def test_in_the_common_thread_unknown_ones_go_first_and_short_ones_before_long_ones(
    threads: Threads,
) -> None:
    works = [
        threads.add("first", takes_s=0.05),
        threads.add("dear", dear=True),
        threads.add("long", size=5),
        threads.add("short"),
        threads.add("next"),
    ]
    await asyncio.gather(*works)
    assert threads.done == ["first", "short", "next", "long", "dear"]


async def test_dear_backends_have_a_part_of_the_common_thread(threads: Threads) -> None:
    began_s = time.perf_counter()
    works = [threads.add("dear", dear=True, costs_s=0.04) for _ in range(3)]
    await works[0]
    await threads.add("unknown")
    unknown_s = time.perf_counter() - began_s
    await asyncio.gather(*works)
    took_s = time.perf_counter() - began_s
    print(f"the unknown waited {unknown_s * 1000:.0f} ms, the dear ones {took_s * 1000:.0f} ms")
    assert threads.done == ["dear", "unknown", "dear", "dear"]
    assert unknown_s < 0.1
    assert took_s > 0.24  # two rests


class Without(Executor):
    """It can start no thread for the first works."""

    def __init__(self, *_: Any) -> None:
        self.lacks = 2

    def submit(self, call: Any, /, *_: Any, **__: Any) -> Future[Any]:
        if self.lacks:
            self.lacks -= 1
            raise RuntimeError("can't start new thread")
        future: Future[Any] = Future()
        future.set_result(call())
        return future


async def test_who_has_no_thread_is_told_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ThreadPoolExecutor", Without)
    threads = Threads()
    works = [threads.add(name) for name in "abc"]
    results = await asyncio.gather(*works, return_exceptions=True)
    assert [type(each) for each in results] == [OSError, OSError, type(None)]
    assert threads.done == ["c"]


async def test_all_connections_of_an_address_take_turns_and_the_oldest_is_forgotten() -> None:
    thread = Thread()
    table = ClientHandshakes(thread.loop, threads_of(thread))
    first, other = table.of("a"), table.of("b")
    assert table.of("a") is first is not other
    for each in (first, first, other):
        each.add(lambda: True, lambda error: None, lambda: False)
    assert len(thread.works) == 2
    await thread.run()
    assert first.quick
    for number in range(PARTIES_MAX - 2):
        table.of(str(number))
    assert table.of("a") is first
    table.of("more")
    assert table.of("a") is first
    assert table.of("b") is not other


# A connection to a backend ---------------------------------------------------------------------


def flight(client: End, context: ssl.SSLContext | None = None) -> End:
    """A server whose part of the handshake has come."""
    server = End(context or server_context())
    connect(client, server)
    deliver(client, server)
    deliver(server, client)
    return server


def dialed(
    trusted: bool = True, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[Thread, End]:
    thread = Thread()
    context = client_context() if trusted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    return thread, End(context, "localhost", handshakes=Handshakes(threads_of(thread)))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_loop_takes_no_step_meanwhile(version: ssl.TLSVersion) -> None:
    thread, client = dialed(version=version)
    client.app.greeting = b"GET "
    server = flight(client)
    while not client.tls.opened.done():
        await turns()
        assert client.wire.sent == b""
        client.tls.resume_reading()  # as the protocol behind may at any time
        client.tls.resume_writing()
        await turns()
        assert len(thread.works) == 1
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
    connect(client, server)
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


class Silent(Wire):
    """uvloop's transport after the call that made it was cancelled: it looks open."""

    def write(self, data: Any) -> None:
        if self.aborted:
            raise RuntimeError
        super().write(data)

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("wire", [Wire, Silent])
async def test_what_an_aborted_handshake_came_to_is_dropped(
    wire: type[Wire], trusted: bool, late: bool
) -> None:
    """The dial was given up, or the backend has left, before or while the thread works."""
    thread, client = dialed(trusted)
    client.wire = wire()
    flight(client)
    await turns()
    sent = client.wire.sent
    await thread.abort(client, late)
    client.app.transport.write(b"x")
    assert client.app.transport.is_closing()
    assert not client.tls.opened.done()
    client.tls.connection_lost(None)
    assert (client.wire.sent, client.app.got) == (sent, b"")
    assert client.app.lost == [None]
    assert isinstance(client.tls.opened.exception(), ConnectionError)
    assert not thread.works


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
    connect(client, server)
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


class Wanting:
    """A connection whose step wants more bytes."""

    def step(self) -> bool:
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
