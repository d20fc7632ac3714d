"""A watch's rest: ended by a call, or by a look that finds a turn due."""

import asyncio

from penstock.health.pace import Rest

NEVER_S = 1_000.0


async def test_a_call_ends_the_rest() -> None:
    rest = Rest(lambda: NEVER_S, lambda: False)
    resting = asyncio.create_task(rest.over())
    await asyncio.sleep(0)
    assert not resting.done()
    rest.call()
    rest.call()
    assert await resting
    resting = asyncio.create_task(rest.over())
    await asyncio.sleep(0)
    assert not resting.done()  # both calls were for the turn that has been taken
    resting.cancel()


async def test_a_call_while_nobody_rests_ends_the_next_rest() -> None:
    rest = Rest(lambda: NEVER_S, lambda: False)
    rest.call()
    assert await rest.over()


async def test_it_ends_at_the_first_look_that_finds_a_turn_due() -> None:
    looks = [True, False, False]
    assert not await Rest(lambda: 0.0, looks.pop).over()
    assert not looks


async def test_a_cancelled_rest_looks_no_more() -> None:
    looks: list[int] = []

    def due() -> bool:
        looks.append(0)
        return False

    resting = asyncio.create_task(Rest(lambda: 0.0, due).over())
    for _ in range(5):
        await asyncio.sleep(0)
    resting.cancel()
    await asyncio.sleep(0)
    seen = len(looks)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(looks) == seen > 0
