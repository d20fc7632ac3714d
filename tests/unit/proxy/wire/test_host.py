"""Where a backend is: looked up in time, kept when that fails, by a lookup and a clock of ours."""

import asyncio
from collections.abc import Sequence

import pytest

from penstock.proxy.wire.host import (
    ADDRESSES_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    REFRESH_S,
    WAIT_S,
    Host,
    Names,
)


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
        for _ in range(4):
            await asyncio.sleep(0)
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
    for _ in range(4):
        await asyncio.sleep(0)
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
