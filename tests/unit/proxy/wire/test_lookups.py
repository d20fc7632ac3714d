"""Lookups beside the loop: shared, bounded in threads, and none waits for names that are slow."""

import asyncio
from collections.abc import Callable, Sequence

from penstock.proxy.wire.host import (
    BUSY_MAX,
    DOUBTFUL,
    KNOWN_MAX,
    NEW,
    SLOW_S,
    THREADS_MAX,
    Lookups,
)


class Servers:
    """Name servers: `slow*` names are answered when told, with nothing; others at once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.taken_s = 0.0  # by each lookup
        self.threads_left = 1_000
        self.asked: list[str] = []
        self.held: list[Callable[[], None]] = []
        self.lookups = Lookups(self.resolve, self.beside, lambda: self.now_s)
        self.tasks: list[asyncio.Task[Sequence[str]]] = []

    def resolve(self, name: str) -> Sequence[str]:
        self.now_s += self.taken_s
        self.asked.append(name)
        if name.startswith("good"):
            return ["10.0.0.1"]
        if name.startswith("strange"):
            raise UnicodeError(name)
        raise OSError(name)

    def beside(self, call: Callable[[], None]) -> None:
        if not self.threads_left:
            raise RuntimeError("can't start new thread")
        self.threads_left -= 1
        self.held.append(call)

    async def ask(self, *names: str) -> list[asyncio.Task[Sequence[str]]]:
        tasks = [asyncio.create_task(each(self.lookups, name)) for name in names]
        self.tasks += tasks
        await turns()
        return tasks

    async def answer(self, count: int) -> None:
        """As many of the lookups under way as have waited longest."""
        ended, self.held = self.held[:count], self.held[count:]
        for call in ended:
            call()
        await turns()

    async def answer_last(self, count: int) -> None:
        ended, self.held = self.held[-count:], self.held[:-count]
        for call in ended:
            call()
        await turns()


async def each(lookups: Lookups, name: str) -> Sequence[str]:
    return await lookups(name)


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def slow(count: int, first: int = 0) -> list[str]:
    return [f"slow{i}" for i in range(first, first + count)]


async def test_twenty_slow_names_keep_two_good_ones_waiting_for_nothing() -> None:
    servers = Servers()
    waiting = await servers.ask(*slow(20))
    good = await servers.ask("good0", "good1")
    await servers.answer_last(2)
    assert [task.result() for task in good] == [["10.0.0.1"]] * 2
    assert not any(task.done() for task in waiting)
    assert len(servers.held) == 20


async def test_names_that_failed_hold_half_of_the_threads_and_new_ones_a_quarter_less() -> None:
    servers = Servers()
    names = slow(THREADS_MAX)
    await servers.ask("good0", *names)
    while servers.held:
        await servers.answer(len(servers.held))
    await servers.ask(*names)  # every one failed before
    assert len(servers.held) == BUSY_MAX[DOUBTFUL] == THREADS_MAX // 2
    await servers.ask(*slow(THREADS_MAX, THREADS_MAX))
    assert len(servers.held) == BUSY_MAX[NEW] < THREADS_MAX
    (known,) = await servers.ask("good0")
    await servers.answer_last(1)
    assert known.result() == ["10.0.0.1"]
    while servers.held:
        assert len(servers.held) <= THREADS_MAX
        await servers.answer(1)
    assert all(task.done() for task in servers.tasks)  # everybody's turn came
    assert len(servers.asked) == 3 * THREADS_MAX + 2


async def test_a_name_that_was_slow_is_doubtful_until_it_is_quick() -> None:
    servers = Servers()
    servers.taken_s = SLOW_S + 0.1
    await servers.ask("good0")
    await servers.answer(1)
    servers.taken_s = 0.0
    half = BUSY_MAX[DOUBTFUL]
    for round_, begins in enumerate((False, True)):
        await servers.ask(*slow(half, round_ * half))  # new ones
        (task,) = await servers.ask("good0")
        assert len(servers.held) == half + begins
        while servers.held:
            await servers.answer(len(servers.held))
        assert task.result() == ["10.0.0.1"]


async def test_all_who_ask_for_a_name_share_its_lookup() -> None:
    servers = Servers()
    tasks = await servers.ask(*["good0"] * 5)
    assert len(servers.held) == 1
    tasks[0].cancel()  # who leaves takes nothing from the others
    await servers.answer(1)
    assert [task.result() for task in tasks[1:]] == [["10.0.0.1"]] * 4
    await servers.ask("good0")
    assert len(servers.held) == 1  # a later one is new


async def test_a_name_that_dns_cannot_know_and_a_lack_of_threads_are_failures() -> None:
    servers = Servers()
    (strange,) = await servers.ask("strange")
    await servers.answer(1)
    assert strange.result() == ()
    servers.threads_left = 0
    tasks = await servers.ask("good0", "good1")
    assert [task.result() for task in tasks] == [(), ()]
    servers.threads_left = 1
    (task,) = await servers.ask("good0")
    await servers.answer(1)
    assert task.result() == ["10.0.0.1"]


async def test_what_is_known_of_names_is_bounded() -> None:
    servers = Servers()
    for i in range(0, KNOWN_MAX + 32, 32):
        await servers.ask(*slow(32, i))
        await servers.answer(32)
    assert len(servers.lookups._known) == KNOWN_MAX
