"""Which parties of clients are remembered, and that nobody fills the table for others."""

import asyncio
import time
from typing import Any

import pytest

from penstock.proxy.wire.client_certificate import ClientCertificate
from penstock.proxy.wire.client_handshakes import (
    HELLO_BYTES,
    REMEMBERED_MAX,
    UNFINISHED_BYTES_MAX,
    AskedClient,
    ClientHandshakes,
)
from penstock.proxy.wire.handshake_threads import Rank, Work
from penstock.proxy.wire.handshakes import DEAR_S


class Beside:
    """Does a work when it is told to."""

    def __init__(self) -> None:
        self.works: list[tuple[Work, Rank | None, asyncio.Future[float]]] = []

    def __call__(self, work: Work, rank: Rank | None) -> asyncio.Future[float]:
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.works.append((work, rank, future))
        return future

    async def go(self) -> Rank | None:
        work, rank, future = self.works.pop(0)
        future.set_result(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return rank


@pytest.fixture
def beside() -> Beside:
    return Beside()


async def shake(table: ClientHandshakes, beside: Beside, party: str, verified: bool) -> Rank | None:
    """One handshake of one step. Returns the rank that it had."""
    table.enter(party).add(lambda: verified, lambda error: None, lambda: False)
    rank = await beside.go()
    table.leave(party)
    return rank


async def test_a_party_that_has_shown_a_certificate_is_remembered(beside: Beside) -> None:
    table = ClientHandshakes(asyncio.get_running_loop(), beside)
    assert await shake(table, beside, "a", True) == Rank()
    assert await shake(table, beside, "a", True) is None
    assert await shake(table, beside, "b", False) == Rank()
    assert await shake(table, beside, "b", False) == Rank()
    assert len(table) == 1


async def test_all_connections_of_a_party_take_turns(beside: Beside) -> None:
    """Also if one of them has ended meanwhile: nobody gets a second place in the queue."""
    table = ClientHandshakes(asyncio.get_running_loop(), beside)
    first, other = table.enter("a"), table.enter("b")
    second = table.enter("a")
    table.leave("a")
    third = table.enter("a")
    assert first is second is third is not other
    for each in (first, third, other):
        each.add(lambda: False, lambda error: None, lambda: False)
    assert len(beside.works) == 2
    for party in ("a", "a", "b"):
        table.leave(party)
    while beside.works:
        await beside.go()
    assert len(table) == 0


async def test_who_leaves_amid_a_step_gets_no_second_one_beside_it(beside: Beside) -> None:
    """Nor is it forgotten that the step was dear."""
    table = ClientHandshakes(asyncio.get_running_loop(), beside)
    first = table.enter("a")

    def dear() -> bool:
        until_s = time.thread_time() + 1.2 * DEAR_S
        while time.thread_time() < until_s:
            pass
        return False

    first.add(dear, lambda error: None, lambda: False)
    table.leave("a")
    again = table.enter("a")
    assert again is first
    again.add(lambda: False, lambda error: None, lambda: False)
    table.leave("a")
    assert len(beside.works) == 1
    assert await beside.go() == Rank()
    assert len(beside.works) <= 1
    assert len(table) == 1
    assert await shake(table, beside, "a", False) == Rank(dear=True)


async def test_of_those_remembered_the_oldest_is_forgotten(beside: Beside) -> None:
    table = ClientHandshakes(asyncio.get_running_loop(), beside)
    for number in range(REMEMBERED_MAX):
        await shake(table, beside, str(number), True)
    assert await shake(table, beside, "0", True) is None  # it is the youngest now
    await shake(table, beside, "more", True)
    assert len(table) == REMEMBERED_MAX
    assert await shake(table, beside, "0", True) is None
    assert await shake(table, beside, "1", True) == Rank()


async def test_strangers_take_no_place_of_those_remembered(beside: Beside) -> None:
    table = ClientHandshakes(asyncio.get_running_loop(), beside)
    await shake(table, beside, "known", True)
    for number in range(REMEMBERED_MAX + 1):
        await shake(table, beside, str(number), False)
    assert await shake(table, beside, "known", True) is None
    assert len(table) == 1


async def test_of_what_is_shown_and_not_finished_the_party_with_the_most_loses_its_largest(
    beside: Beside,
) -> None:
    """Not who comes last, not a healthy client, and hellos alone cost nobody anything."""
    table = ClientHandshakes(asyncio.get_running_loop(), beside)
    gone: list[str] = []

    def shown(name: str, size_bytes: int, party: str = "") -> AskedClient:
        client = AskedClient(table, ClientCertificate(b"ours"))
        connection: Any = object()
        client.enter(party or name, connection, lambda: gone.append(name))
        client.hold(size_bytes)
        return client

    hellos = [shown("hello", HELLO_BYTES) for _ in range(10_000)]
    healthy = shown("healthy", 7_000)
    small = (UNFINISHED_BYTES_MAX - 16_384) // 1_000
    attackers = [shown(f"small-{n}", HELLO_BYTES + 1_000, "attacker") for n in range(small)]
    attackers.append(shown("large", HELLO_BYTES + 4_000, "attacker"))
    assert not gone
    other = shown("other", 16_384)
    assert gone[0] == "large"
    assert all(name.startswith("small") for name in gone[1:])
    assert len(gone) < 12
    for client in (healthy, other, *hellos, *attackers):
        client.leave()
        client.leave()
    assert len(table) == 0
    count = len(gone)
    shown("again", 16_384)
    assert len(gone) == count
