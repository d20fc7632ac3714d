"""Whose unread answer is given up when they take too much memory, and whose is not."""

import asyncio
from itertools import count
from typing import cast

import pytest

from penstock.proxy.data.client import Client
from penstock.proxy.data.unread import CLEARED, PACE_MAX, SHUNNED_S, Unread

MB = 1_000_000


class Taker:
    """A client, and the transport that holds what it was not sent."""

    def __init__(
        self,
        table: "Table",
        unsent_bytes: int,
        kernel_bytes: int,
        holder: str = "",
        pace: float = 0.0,
    ) -> None:
        self._table = table
        self.holder = holder or f"holder {next(table.numbers)}"
        self.unsent_bytes = unsent_bytes
        self.kernel_bytes = kernel_bytes
        self.pace = pace
        self.gone = False
        table.unread.add(self.client, cast(asyncio.Transport, self))

    @property
    def client(self) -> Client:
        return cast(Client, self)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def give_way(self) -> None:
        self.gone = True
        self._table.unread.done(self.client)  # as its lost connection does


class Table:
    def __init__(self, limit_bytes: int) -> None:
        self.now_s = 1_000.0
        self.numbers = count()
        self.unread = Unread(lambda: self.now_s, lambda each: cast(Taker, each).kernel_bytes)
        self.unread.limit_bytes = limit_bytes

    def add(self, number: int, unsent_bytes: int = MB, kernel_bytes: int = 0) -> list[Taker]:
        return [Taker(self, unsent_bytes, kernel_bytes) for _ in range(number)]


def gone(takers: list[Taker]) -> int:
    return sum(each.gone for each in takers)


def test_whoever_reads_keeps_its_answer() -> None:
    """However many it has, whoever came first, and though the others have few each."""
    table = Table(32 * MB)
    stalled = table.add(8)
    readers = table.add(20)
    for _ in range(30):
        table.now_s += 0.1
        for each in readers:
            each.unsent_bytes = max(20_000, each.unsent_bytes - 15_000)  # 150 KB/s
        stalled += table.add(1)
    assert gone(readers) == 0
    assert gone(stalled) == 8 + 30 + 11 - 32  # the readers have 11 MB left


def test_what_the_kernel_holds_was_not_taken() -> None:
    """It takes half a megabyte at once. Then nothing leaves the process for seconds."""
    table = Table(32 * MB)
    readers = table.add(4, kernel_bytes=500_000)
    newcomers = []
    for _ in range(40):
        table.now_s += 0.05
        for each in readers:
            each.kernel_bytes -= 5_000  # 100 KB/s
        newcomers += table.add(2)
        for each in newcomers[-2:]:
            each.kernel_bytes, each.unsent_bytes = 500_000, MB // 2
    assert gone(readers) == 0
    assert gone(newcomers) >= 12


def test_a_pause_of_seconds_does_not_undo_a_pace() -> None:
    """100 KB/s, but TCP tells of it each 2.6 s."""
    table = Table(64 * MB)
    readers = table.add(4, 260_000)
    newcomers = []
    for tenth in range(1, 100):
        table.now_s += 0.1
        if tenth % 26 == 0:
            for each in readers:
                each.unsent_bytes = 0
                table.unread.done(each.client)
                each.unsent_bytes = 260_000
                table.unread.add(each.client, cast(asyncio.Transport, each))
        newcomers += table.add(1 if tenth < 26 else 4)
    assert gone(readers) == 0
    assert gone(newcomers) > 200


@pytest.mark.parametrize("stalled_s", [0.5, 1, 3, 5, 10])
def test_what_was_read_before_saves_nobody_who_stops(stalled_s: float) -> None:
    """An attacker reads ten megabytes in a second, and then nothing more."""
    table = Table(32 * MB)
    fast = table.add(16)
    table.now_s += 1.0
    for each in fast:
        each.unsent_bytes = 0
        table.unread.done(each.client)
        each.unsent_bytes = MB
        table.unread.add(each.client, cast(asyncio.Transport, each))
    readers = table.add(16)
    for _ in range(int(10 * stalled_s)):
        table.now_s += 0.1
        for each in readers:
            each.unsent_bytes -= 7_000  # 70 KB/s
    table.unread.clear(4 * MB)
    assert (gone(fast), gone(readers)) == (4, 0)


def test_what_was_taken_meanwhile_holds_no_room() -> None:
    """Their connections still hold a tenth, so they are not through, but there is room."""
    table = Table(20 * MB)
    readers = table.add(20)
    table.now_s += 9.0
    for each in readers:
        each.unsent_bytes = MB // 10
    newcomers = table.add(3)
    assert gone(readers + newcomers) == 0
    table.now_s += 1.0
    newcomers += table.add(16)
    assert (gone(readers), gone(newcomers)) == (0, 1)


@pytest.mark.parametrize("pace", [0.0, PACE_MAX])
def test_whoever_asks_again_after_it_took_nothing_goes_before_a_newcomer(pace: float) -> None:
    """Also if it reads a whole answer before it stops.

    A hundred addresses ask ten times a second. TCP tells of readers in steps of 64 KB.
    """
    table = Table(24 * MB)
    flood = {number: Taker(table, MB, 0, f"10.0.0.{number}") for number in range(100)}
    table.now_s += 1.0
    readers: list[Taker] = []
    for tenth in range(1, 100):
        for number, each in flood.items():
            table.now_s += 0.001
            if each.gone:
                flood[number] = Taker(table, MB, 0, each.holder, pace)
        if tenth in (20, 40):
            readers += table.add(2)
        if tenth % 8 == 0:
            for each in readers:
                each.unsent_bytes -= 65_536  # 80 KB/s
    assert (gone(readers), len(readers)) == (0, 4)


@pytest.mark.parametrize("rate", [128, 512], ids=lambda rate: f"{rate} KiB/s")
@pytest.mark.parametrize("at_once_bytes", [8_192, 32_768])
def test_who_reads_outlives_others_of_its_holder_who_do_not_and_ask_again(
    rate: int, at_once_bytes: int
) -> None:
    """Behind one address. The kernel of whoever does not read takes a little nevertheless."""
    table = Table(11 * MB)
    stalled = [Taker(table, MB, 0, "10.0.0.1") for _ in range(24)]
    honest: list[Taker] = []
    lost = 0
    for tick in range(1_000):
        table.now_s += 0.01
        for number, each in enumerate(stalled):
            if each.unsent_bytes == MB:
                each.unsent_bytes -= at_once_bytes
            if each.gone and tick % 30 == number:
                lost += 1
                stalled[number] = Taker(table, MB, 0, "10.0.0.1")
        for each in honest:
            each.unsent_bytes = max(0, each.unsent_bytes - rate * 1024 // 100)
            if not each.unsent_bytes and not each.gone:
                table.unread.done(each.client)
        if (
            tick % (32_768 // rate) == 59
        ):  # a new connection, and one that has read an answer before
            honest += [Taker(table, MB, 0, "10.0.0.1", pace) for pace in (0.0, PACE_MAX)]
    assert gone(honest) == 0
    assert lost > 100


def test_it_is_forgiven_after_a_while() -> None:
    table = Table(2 * MB)
    for later_s, lost in ((SHUNNED_S - 1, "again"), (SHUNNED_S + 1, "new")):
        stalled = [Taker(table, MB, 0, "again") for _ in range(2)]
        table.now_s += 1.0
        stalled.append(Taker(table, MB, 0, "again"))
        assert gone(stalled) == 1
        table.unread.clear(2 * MB)
        assert gone(stalled) == 3
        table.now_s += later_s
        new = Taker(table, MB, 0, "new")
        table.now_s += 0.1
        again = Taker(table, MB, 0, "again")
        table.now_s += 0.1
        table.unread.clear(MB)
        assert {"again": again.gone, "new": new.gone} == {
            "again": lost == "again",
            "new": lost == "new",
        }
        table.unread.done(new.client)
        table.unread.done(again.client)
        table.now_s += 2 * SHUNNED_S


@pytest.mark.parametrize("kib_per_s", [64, 256])
def test_nor_do_readers_at_its_address_pay_for_ever_while_others_flood(kib_per_s: int) -> None:
    """One answer there was not read, once. Then fresh addresses ask all the time."""
    table = Table(11 * MB)
    unread = Taker(table, MB, 0, "address")
    table.now_s += 1.0
    table.unread.clear(MB)
    assert unread.gone
    flood = table.add(11)
    readers: list[Taker] = []
    for tick in range(7_500):
        table.now_s += 0.01
        flood = [table.add(1)[0] if each.gone else each for each in flood]
        for reader in readers:
            reader.unsent_bytes = max(0, reader.unsent_bytes - kib_per_s * 1024 // 100)
            if not reader.unsent_bytes and not reader.gone:
                table.unread.done(reader.client)
        if tick % 100 == 59:
            readers.append(Taker(table, MB, 0, "address", PACE_MAX))
    assert gone(readers[int(SHUNNED_S) + 1 :]) <= 1


def test_closing_frees_only_what_is_still_there() -> None:
    table = Table(32 * MB)
    takers = table.add(10)
    table.now_s += 1.0
    for each in takers:
        each.unsent_bytes = MB // 10
    table.unread.clear(MB // 2)
    assert gone(takers) == 5


def test_it_is_the_one_that_waits_longest_of_those_that_read_nothing() -> None:
    table = Table(4 * MB)
    takers = []
    for _ in range(10):
        table.now_s += 1.0
        takers += table.add(1)
    assert [each.gone for each in takers] == [True] * 6 + [False] * 4


def test_a_drop_now_and_then_saves_nobody() -> None:
    table = Table(8 * MB)
    dripping = table.add(8)
    for _ in range(40):
        table.now_s += 1.0
        for each in dripping:
            each.unsent_bytes -= 1_000
    newcomers = []
    for _ in range(4):
        table.now_s += 0.01
        newcomers += table.add(1)
    assert (gone(dripping), gone(newcomers)) == (4, 0)


def test_they_count_for_what_is_unsent() -> None:
    table = Table(32 * MB)
    assert gone(table.add(1_900, 16_500)) == 0
    table.now_s += 1.0
    newcomer = table.add(1)
    assert not newcomer[0].gone


def test_they_count_for_what_their_backends_sent_too() -> None:
    table = Table(MB)
    first, second = table.add(2, 16_500)
    table.now_s += 1.0
    table.unread.add(first.client, cast(asyncio.Transport, first), 400_000)
    assert gone([first, second]) == 0
    table.now_s += 1.0
    table.unread.add(second.client, cast(asyncio.Transport, second), 600_000)
    assert gone([first, second]) == 1


def test_it_gives_up_no_more_than_is_lacking_and_only_a_few_at_once() -> None:
    table = Table(200 * MB)
    takers = table.add(200)
    table.unread.clear(0)
    assert gone(takers) == 0
    table.unread.clear(3 * MB)
    assert gone(takers) == 3
    table.unread.clear(150 * MB)
    assert gone(takers) == 3 + CLEARED


def test_many_are_not_looked_at_for_each_newcomer() -> None:
    """A look at a thousand takes a millisecond."""
    table = Table(MB)
    takers = table.add(1_000, 1_000)
    takers += table.add(300, 1_000)
    assert gone(takers) == 1
    table.now_s += 1.0
    takers += table.add(1, 1_000)
    assert gone(takers) == 1 + CLEARED
    for each in takers:
        table.unread.done(each.client)
    assert gone(table.add(1)) == 0
