"""Long lists as JSON: in slices, between which others run."""

import asyncio
from collections.abc import Iterator

import orjson

from penstock.proxy.admin.answers import AT_ONCE, json_list


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
