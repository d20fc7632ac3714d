"""Long lists as JSON: in slices, between which others run."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from penstock.proxy.admin.answers import AT_ONCE, WAITING_MAX, Crowded, ListTurns, json_list


async def test_a_long_list_is_made_in_slices() -> None:
    made: list[int] = []
    seen: list[int] = []

    async def other() -> None:
        while True:
            seen.append(len(made))
            await asyncio.sleep(0)

    def entries() -> Iterator[dict[str, int]]:
        for number in range(3 * AT_ONCE + 1):
            made.append(number)
            yield {"name": number}

    beside = asyncio.create_task(other())
    body = await json_list(entries())
    beside.cancel()
    assert orjson.loads(body) == [{"name": number} for number in range(3 * AT_ONCE + 1)]
    assert seen == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE]


async def test_an_empty_list_is_a_list() -> None:
    assert orjson.loads(await json_list(())) == []


def request(*, left: bool = False) -> Any:
    return SimpleNamespace(transport=SimpleNamespace(is_closing=lambda: left))


async def test_lists_are_made_one_after_another_and_not_for_those_who_left() -> None:
    turns, made, running = ListTurns(), list[int](), 0

    async def make(number: int, *, left: bool) -> None:
        nonlocal running
        async with turns.turn(request(left=left)):
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            made.append(number)
            running -= 1

    asked = [make(number, left=number % 2 == 1) for number in range(6)]
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert made == [0, 2, 4]
    assert [type(each) for each in ended if each] == [ConnectionResetError] * 3


async def test_of_many_who_wait_the_last_ones_are_refused() -> None:
    turns, over = ListTurns(), asyncio.Event()

    async def make() -> None:
        async with turns.turn(request()):
            await over.wait()

    waiting = [asyncio.create_task(make()) for _ in range(WAITING_MAX + 1)]
    await asyncio.sleep(0)
    with pytest.raises(Crowded):
        async with turns.turn(request()):
            pass
    waiting[1].cancel()  # its place is free
    await asyncio.sleep(0)
    last = asyncio.create_task(make())
    over.set()
    ended = await asyncio.gather(*waiting, last, return_exceptions=True)
    assert [type(each) for each in ended if each] == [asyncio.CancelledError]
