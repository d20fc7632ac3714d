"""Whose waiting reads are given up when memory is short, and whose are not."""

import pytest

from penstock.proxy.wire.party import STRANGERS
from penstock.proxy.wire.waiting import (
    CLEARED,
    LEAST_BYTES,
    STRANGERS_BYTES_MAX,
    Waiting,
)

READ_BYTES = 262_144


class Reader:
    gone = False

    def give_way(self) -> None:
        self.gone = True


def add(waiting: Waiting, count: int, holder: str, size_bytes: int) -> list[Reader]:
    readers = [Reader() for _ in range(count)]
    for reader in readers:
        waiting.add(reader, holder, size_bytes)
    return readers


def gone(readers: list[Reader]) -> int:
    return sum(reader.gone for reader in readers)


def test_of_strangers_who_waits_longest_gives_way_if_all_is_too_much() -> None:
    waiting = Waiting()
    room = STRANGERS_BYTES_MAX // READ_BYTES
    strangers: list[Reader] = []
    for number in range(300):
        strangers += add(waiting, 1, STRANGERS, READ_BYTES)
        assert len(strangers) - gone(strangers) == min(number + 1, room)
        waiting.add(strangers[-1], STRANGERS, READ_BYTES)  # the same bytes
    assert [each.gone for each in strangers] == [True] * (300 - room) + [False] * room
    for stranger in strangers:
        waiting.done(stranger)  # those that are gone, too
    assert waiting.of(STRANGERS) == 0
    assert not gone(add(waiting, 1, STRANGERS, STRANGERS_BYTES_MAX))


def test_more_that_comes_does_not_make_a_stranger_a_newcomer() -> None:
    waiting = Waiting()
    first, second = add(waiting, 2, STRANGERS, 1)
    waiting.add(first, STRANGERS, 2)
    add(waiting, 1, STRANGERS, STRANGERS_BYTES_MAX - 1)
    assert (first.gone, second.gone) == (True, False)


def test_who_has_shown_a_key_meanwhile_is_no_stranger() -> None:
    waiting = Waiting()
    (reader,) = add(waiting, 1, STRANGERS, READ_BYTES)
    waiting.add(reader, "tenant", READ_BYTES)
    add(waiting, 1, STRANGERS, STRANGERS_BYTES_MAX)
    assert not reader.gone
    assert (waiting.of("tenant"), waiting.of(STRANGERS)) == (READ_BYTES, STRANGERS_BYTES_MAX)


@pytest.mark.parametrize("attackers_first", [False, True])
def test_the_holder_with_most_loses_and_nobody_else(attackers_first: bool) -> None:
    waiting = Waiting()
    if attackers_first:
        many = add(waiting, 40, "attacker", READ_BYTES)
        few = add(waiting, 40, "victim", 60_000)
    else:
        few = add(waiting, 40, "victim", 60_000)
        many = add(waiting, 40, "attacker", READ_BYTES)
    waiting.clear()
    assert (gone(few), gone(many)) == (0, 40)


def test_its_largest_go_first_a_few_at_a_time() -> None:
    waiting = Waiting()
    small = add(waiting, CLEARED, "attacker", 10_000)
    large = add(waiting, CLEARED, "attacker", READ_BYTES)
    waiting.clear()
    assert (gone(small), gone(large)) == (0, CLEARED)


def test_strangers_of_many_addresses_are_one_holder() -> None:
    waiting = Waiting()
    uploads = add(waiting, 8, "victim", READ_BYTES)
    strangers = add(waiting, 2_000, STRANGERS, 16_000)
    waiting.clear()
    assert (gone(uploads), gone(strangers)) == (0, CLEARED)


def test_many_holders_of_as_much_lose_together() -> None:
    """Else only one of them would, each time."""
    waiting = Waiting()
    readers = [reader for i in range(500) for reader in add(waiting, 1, f"{i}", 65_536)]
    waiting.clear()
    assert gone(readers) == CLEARED


def test_small_reads_are_left_alone() -> None:
    waiting = Waiting()
    hellos = add(waiting, 300, "victim", LEAST_BYTES - 1)
    waiting.clear()
    assert not gone(hellos)
    (large,) = add(waiting, 1, "other", LEAST_BYTES)
    waiting.clear()
    assert (gone(hellos), large.gone) == (0, True)


def test_at_the_limit_no_more_is_given_up_than_a_part_of_it() -> None:
    waiting = Waiting()
    waiting.limit_bytes = 32 * READ_BYTES
    few = add(waiting, 4, "victim", READ_BYTES)
    many = add(waiting, 28, "attacker", READ_BYTES)
    assert gone([*few, *many]) == 0
    many += add(waiting, 1, "attacker", READ_BYTES)
    assert (gone(few), gone(many)) == (0, 3)  # down to fifteen sixteenths
    many += add(waiting, 2, "attacker", READ_BYTES)
    assert (gone(few), gone(many)) == (0, 3)
    assert waiting.of("attacker") == 28 * READ_BYTES


def test_what_is_too_small_to_free_anything_is_not_looked_at_each_time() -> None:
    waiting = Waiting()
    waiting.limit_bytes = 100 * LEAST_BYTES
    tiny = add(waiting, 300, "many", LEAST_BYTES - 1)
    assert gone(tiny) == 0
    assert gone(add(waiting, 1, "many", READ_BYTES)) == 1
