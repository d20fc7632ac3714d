"""Which of many backends' handshakes have a thread, and when."""

import asyncio
import time
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from penstock.proxy.wire import handshake_threads as module
from penstock.proxy.wire.handshake_threads import HandshakeThreads, Rank, Work

UNKNOWN, DEAR = Rank(), Rank(dear=True)


class Threads:
    """Works with names, and in which order they were done."""

    def __init__(self) -> None:
        self.threads = HandshakeThreads(asyncio.get_running_loop())
        self.done: list[str] = []

    def add(
        self, name: str, rank: Rank | None, takes_s: float = 0.0, costs_s: float = 0.0
    ) -> asyncio.Future[float]:
        def work() -> float:
            time.sleep(takes_s)
            self.done.append(name)
            return costs_s

        return self.threads(work, rank)


async def test_many_dear_backends_delay_no_verified_one() -> None:
    threads = Threads()
    dear = [threads.add("dear", DEAR, 0.05, 0.01) for _ in range(20)]
    began_s = time.perf_counter()
    for _ in range(5):
        await threads.add("verified", None)
    waited_s = time.perf_counter() - began_s
    print(f"five verified ones waited {waited_s * 1000:.1f} ms")
    assert waited_s < 0.5
    assert threads.done.count("dear") < 15
    assert not dear[-1].done()


async def test_in_the_common_thread_unknown_ones_go_first_and_short_ones_before_long_ones() -> None:
    threads = Threads()
    works = [
        threads.add("first", UNKNOWN, 0.05),
        threads.add("dear", DEAR),
        threads.add("long", Rank(size=5)),
        threads.add("short", UNKNOWN),
        threads.add("next", UNKNOWN),
    ]
    await asyncio.gather(*works)
    assert threads.done == ["first", "short", "next", "long", "dear"]


async def test_dear_backends_have_a_part_of_the_common_thread() -> None:
    threads = Threads()
    began_s = time.perf_counter()
    works = [threads.add("dear", DEAR, costs_s=0.04) for _ in range(3)]
    await works[0]
    await threads.add("unknown", UNKNOWN)
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
    works = [threads.add(name, UNKNOWN) for name in "abc"]
    results = await asyncio.gather(*works, return_exceptions=True)
    assert [type(each) for each in results] == [RuntimeError, RuntimeError, float]
    assert threads.done == ["c"]


async def test_a_work_that_fails_does_not_keep_the_thread() -> None:
    threads = Threads()

    def fails() -> float:
        raise MemoryError

    work: Work = fails
    with pytest.raises(MemoryError):
        await threads.threads(work, UNKNOWN)
    await threads.add("next", UNKNOWN)
    assert threads.done == ["next"]
