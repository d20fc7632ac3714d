"""Where a backend is: looked up in time and beside the loop, and kept when that fails."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from penstock.proxy.wire.host import (
    ADDRESSES_MAX,
    DOUBTFUL_MAX,
    KNOWN_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    REFRESH_S,
    THREADS_MAX,
    WAIT_S,
    Host,
    Lookups,
    Names,
)


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


class Service:
    """A name server that answers as told, counting."""

    def __init__(self, *addresses: str) -> None:
        self.found: Sequence[str] = addresses
        self.asked = 0
        self.now_s = 1_000.0
        self.held: asyncio.Event | None = None
        loop = asyncio.get_running_loop()
        self.host = Host(loop, "gpu.example", "gpu-0", Names(self.look_up), lambda: self.now_s)

    async def look_up(self, name: str) -> Sequence[str]:
        assert name == "gpu.example"
        self.asked += 1
        if self.held is not None:
            await self.held.wait()
        if not self.found:
            raise OSError("no answer")
        return self.found

    async def after(self, time_s: float) -> tuple[str, ...]:
        """The addresses once what a question at that time sets off has ended."""
        self.now_s += time_s
        await self.host.addresses()
        await turns()
        return await self.host.addresses()


@pytest.mark.parametrize("address", ["10.0.0.1", "::1", "fe80::1%eth0"])
async def test_an_address_is_never_looked_up(address: str) -> None:
    async def look_up(name: str) -> Sequence[str]:
        raise AssertionError(name)

    host = Host(asyncio.get_running_loop(), address, "b", Names(look_up))
    assert await host.addresses() == (address,)


async def test_a_name_is_looked_up_again_in_time() -> None:
    names = Service("10.0.0.1")
    assert await names.after(0) == ("10.0.0.1",)
    names.found = ["10.0.0.2"]
    assert await names.after(REFRESH_S - 1) == ("10.0.0.1",)
    assert (names.asked, names.host.epoch) == (1, 0)
    assert await names.after(1) == ("10.0.0.2",)
    assert (names.asked, names.host.epoch) == (2, 1)


@pytest.mark.parametrize(
    ("found", "servers"),
    [
        (["10.0.0.1"], 1),
        (["10.0.0.1", "fd00::1"], 1),  # one server of two families
        (["10.0.0.1", "10.0.0.2", "fd00::1"], 2),
    ],
)
async def test_addresses_of_one_family_are_several_servers(found: list[str], servers: int) -> None:
    names = Service(*found)
    assert names.host.servers == 0
    await names.after(0)
    assert names.host.servers == servers


async def test_nobody_waits_for_a_second_lookup() -> None:
    names = Service("10.0.0.1")
    await names.after(0)
    names.held = asyncio.Event()
    names.found = ["10.0.0.2"]
    for _ in range(5):
        assert await names.after(REFRESH_S) == ("10.0.0.1",)
    assert names.asked == 2  # one at a time
    names.held.set()
    assert await names.after(0) == ("10.0.0.2",)


async def test_a_failure_keeps_the_last_good(caplog: pytest.LogCaptureFixture) -> None:
    names = Service("10.0.0.1")
    await names.after(0)
    names.found = []
    for _ in range(3):
        assert await names.after(REFRESH_S) == ("10.0.0.1",)
    assert names.asked == 4
    assert names.host.epoch == 0
    assert caplog.text.count("keeping the last ones name=gpu-0") == 1
    names.found = ["10.0.0.3"]
    assert await names.after(REFRESH_S) == ("10.0.0.3",)
    assert "10.0.0" not in caplog.text
    assert "gpu.example" not in caplog.text


async def refused(names: Service) -> bool:
    with pytest.raises(OSError, match="no address"):
        await names.host.addresses()
    return True


async def test_a_name_that_was_never_found_is_asked_ever_more_rarely() -> None:
    names = Service()
    assert await refused(names)
    for asked, pause_s in enumerate([2.0, 4.0, 8.0, 16.0, 30.0, 30.0], 1):
        names.now_s += pause_s - 0.1
        assert await refused(names)
        assert names.asked == asked
        names.now_s += 0.1
        assert await refused(names)
        assert names.asked == asked + 1
    names.found = ["10.0.0.1"]
    assert await refused(names)
    names.now_s += PAUSE_S_MAX
    assert await names.host.addresses() == ("10.0.0.1",)


async def test_a_name_that_was_not_found_is_asked_at_once_when_told_to() -> None:
    names = Service()
    assert await refused(names)
    names.host.ask_again()
    assert await refused(names)
    names.found = ["10.0.0.1"]
    names.now_s += PAUSE_S
    assert await refused(names)  # it failed twice
    names.host.ask_again()
    assert await names.host.addresses() == ("10.0.0.1",)
    names.host.ask_again()
    assert await names.after(0) == ("10.0.0.1",)
    assert names.asked == 3  # what is known is good for as long as ever
    names.host.close()
    names.host.ask_again()
    await names.after(REFRESH_S)
    assert names.asked == 3


async def test_those_who_wait_for_long_are_told_and_the_answer_is_taken_late() -> None:
    names = Service("10.0.0.1")
    names.held = asyncio.Event()
    waiting = asyncio.create_task(names.host.addresses())
    for _ in range(2):
        await asyncio.sleep(0)
    names.now_s += WAIT_S
    for _ in range(3):
        assert await refused(names)
    names.now_s += 600.0
    assert await refused(names)
    assert names.asked == 1  # the lookup that is under way
    names.held.set()
    assert await waiting == ("10.0.0.1",)
    assert await names.host.addresses() == ("10.0.0.1",)
    assert names.asked == 1


async def test_whoever_waits_first_is_told_in_time() -> None:
    names = Service("10.0.0.1")
    names.held = asyncio.Event()
    quick = Names(names.look_up, wait_s=1e-6)
    host = Host(asyncio.get_running_loop(), "gpu.example", "gpu-0", quick, lambda: names.now_s)
    with pytest.raises(OSError, match="no address"):
        await host.addresses()
    assert names.asked == 1
    names.held.set()
    await turns()
    assert await host.addresses() == ("10.0.0.1",)


async def test_all_who_wait_for_the_first_lookup_share_it() -> None:
    names = Service("10.0.0.1")
    names.held = asyncio.Event()
    waiting = [asyncio.create_task(names.host.addresses()) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # a client that leaves takes nothing from the others
    names.held.set()
    assert await asyncio.gather(*waiting[1:]) == [("10.0.0.1",)] * 4
    assert names.asked == 1


async def test_one_that_fails_is_tried_last_and_an_order_is_no_move() -> None:
    names = Service("10.0.0.1", "10.0.0.2", "10.0.0.3")
    await names.after(0)
    names.host.failed("10.0.0.1")
    names.host.failed("10.0.0.9")
    assert await names.after(0) == ("10.0.0.2", "10.0.0.3", "10.0.0.1")
    names.found = ["10.0.0.3", "10.0.0.1", "10.0.0.2"]
    assert await names.after(REFRESH_S) == ("10.0.0.2", "10.0.0.3", "10.0.0.1")
    assert names.host.epoch == 0


async def test_addresses_are_bounded_and_each_is_there_once() -> None:
    names = Service(*["10.0.0.1"] * 3, *(f"10.0.1.{i}" for i in range(50)))
    found = await names.after(0)
    assert len(found) == ADDRESSES_MAX == len(set(found))


# Lookups in threads ----------------------------------------------------------------------------


class Servers:
    """Name servers: `slow*` names are answered when told, with nothing; others at once."""

    def __init__(self) -> None:
        self.threads_left = 1_000
        self.asked: list[str] = []
        self.held: list[Callable[[], None]] = []
        self.lookups = Lookups(self.resolve, self.beside)
        self.tasks: list[asyncio.Task[Sequence[str]]] = []

    def resolve(self, name: str) -> Sequence[str]:
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
        tasks = [asyncio.ensure_future(self.lookups(name)) for name in names]
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
        self.held = self.held[-count:] + self.held[:-count]
        await self.answer(count)


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


async def test_names_that_were_not_found_hold_half_of_the_threads() -> None:
    servers = Servers()
    names = slow(2 * THREADS_MAX)
    await servers.ask("good0")
    await servers.answer(1)
    await servers.ask(*names)
    assert len(servers.held) == DOUBTFUL_MAX < THREADS_MAX
    (known,) = await servers.ask("good0")
    await servers.answer_last(1)
    assert known.result() == ["10.0.0.1"]
    while servers.held:
        assert len(servers.held) <= THREADS_MAX
        await servers.answer(1)
    assert all(task.done() for task in servers.tasks)  # everybody's turn came
    assert len(servers.asked) == 2 * THREADS_MAX + 2


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
    servers.threads_left = 2 * KNOWN_MAX
    for i in range(0, KNOWN_MAX + 32, 32):
        await servers.ask(*[f"good{number}" for number in range(i, i + 32)])
        await servers.answer(32)
    assert len(servers.lookups._found) == KNOWN_MAX
