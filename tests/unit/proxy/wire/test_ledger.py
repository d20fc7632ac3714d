"""Whose heads, waiting reads and unread answers give way when memory is short, and whose do not."""

import pytest

from penstock.proxy.wire.ledger import (
    CLEARED,
    LEAST_BYTES,
    READ_S,
    STRANGERS,
    STRANGERS_BYTES_MAX,
    Ledger,
    victims,
)

READ_BYTES = 262_144
MB = 1_000_000


class Item:
    gone = False

    def give_way(self) -> None:
        self.gone = True


def add(ledger: Ledger, count: int, holder: str, size_bytes: int) -> list[Item]:
    items = [Item() for _ in range(count)]
    for item in items:
        ledger.add(item, holder, size_bytes)
    return items


def gone(items: list[Item]) -> int:
    return sum(item.gone for item in items)


# The rule ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim_first", [False, True])
def test_the_holder_with_most_loses_its_largest(victim_first: bool) -> None:
    few = [("victim", 50_000, f"v{number}") for number in range(10)]
    many = [("attacker", 2**number, f"a{number}") for number in range(10, 20)]
    found, freed_bytes = victims([*few, *many] if victim_first else [*many, *few], 2**19)
    assert (found, freed_bytes) == (["a19"], 2**19)
    # Then those of both, for they have about as much.
    assert len(victims([*few, *many], 2**20)[0]) > 2


def test_holders_with_as_much_lose_as_much() -> None:
    held = [(name, 10_000, (name, number)) for name in "abcd" for number in range(20)]
    found, _ = victims(held, 400_000)
    assert sorted(name for name, _ in found) == sorted("abcd" * 10)
    assert all(number < 10 for _, number in found)  # the first of those that are alike


def test_a_few_go_at_a_time() -> None:
    held = [("a", 10_000, number) for number in range(10 * CLEARED)]
    assert len(victims(held, 10**9)[0]) == CLEARED
    assert victims([], 1) == ([], 0)
    assert victims(held, 0) == ([], 0)


# What waits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("attackers_first", [False, True])
def test_at_the_limit_the_largest_holder_loses_some_and_nobody_else(attackers_first: bool) -> None:
    ledger = Ledger()
    ledger.limit_bytes = 32 * READ_BYTES
    few: list[Item] = []
    if not attackers_first:
        few = add(ledger, 4, "victim", READ_BYTES)
    many = add(ledger, 28, "attacker", READ_BYTES)
    if attackers_first:
        few = add(ledger, 4, "victim", READ_BYTES)
    assert gone([*few, *many]) == 0
    many += add(ledger, 1, "attacker", READ_BYTES)
    assert (gone(few), gone(many)) == (0, 3)  # down to fifteen sixteenths
    many += add(ledger, 2, "attacker", READ_BYTES)
    assert (gone(few), gone(many)) == (0, 3)
    assert ledger.of("attacker") == 28 * READ_BYTES


def test_strangers_of_many_addresses_are_one_holder() -> None:
    ledger = Ledger()
    uploads = add(ledger, 8, "victim", READ_BYTES)
    strangers = add(ledger, 2_000, STRANGERS, 16_000)
    ledger.free(200 * 16_000)
    assert (gone(uploads), gone(strangers)) == (0, 200)


def test_strangers_have_a_limit_of_their_own() -> None:
    ledger = Ledger()
    known = add(ledger, 400, "victim", READ_BYTES)
    strangers = add(ledger, 300, STRANGERS, READ_BYTES)
    assert ledger.of(STRANGERS) <= STRANGERS_BYTES_MAX
    assert not gone(known)
    assert strangers[0].gone  # who waits longest
    assert not strangers[-1].gone
    for stranger in strangers:
        ledger.done(stranger)  # those that are gone, too
    assert ledger.of(STRANGERS) == 0


def test_more_that_comes_does_not_make_a_stranger_a_newcomer() -> None:
    ledger = Ledger()
    first, second = add(ledger, 2, STRANGERS, 9_000)
    ledger.add(first, STRANGERS, 10_000)
    ledger._free(STRANGERS, 1)
    assert (first.gone, second.gone) == (True, False)


def test_who_has_shown_a_key_meanwhile_is_no_stranger() -> None:
    ledger = Ledger()
    (item,) = add(ledger, 1, STRANGERS, READ_BYTES)
    ledger.add(item, "tenant", READ_BYTES)
    add(ledger, 1, STRANGERS, STRANGERS_BYTES_MAX)
    assert not item.gone
    assert (ledger.of("tenant"), ledger.of(STRANGERS)) == (READ_BYTES, STRANGERS_BYTES_MAX)


def test_small_things_are_not_counted() -> None:
    ledger = Ledger()
    hellos = add(ledger, 300, "victim", LEAST_BYTES - 1)
    (large,) = add(ledger, 1, "other", LEAST_BYTES)
    ledger.free(MB)
    assert (gone(hellos), large.gone, ledger.held_bytes) == (0, True, 0)


# Unread answers ---------------------------------------------------------------------------------


class Answer(Item):
    """An answer, and what its client has not taken of it."""

    def __init__(self, size_bytes: int = MB) -> None:
        self.left_bytes = size_bytes

    def left(self) -> int:
        return self.left_bytes


class Table:
    def __init__(self, limit_bytes: int) -> None:
        self.now_s = 1_000.0
        self.ledger = Ledger(lambda: self.now_s)
        self.ledger.limit_bytes = limit_bytes

    def add(self, count: int, holder: str, size_bytes: int = MB) -> list[Item]:
        answers = [Answer(size_bytes) for _ in range(count)]
        for each in answers:
            self.ledger.add(each, holder, size_bytes, each.left)
        return list(answers)

    def read(self, items: list[Item], size_bytes: int) -> None:
        for each in items:
            assert isinstance(each, Answer)
            each.left_bytes = max(20_000, each.left_bytes - size_bytes)


def test_whoever_reads_keeps_its_answer_beside_others_of_its_holder_who_do_not() -> None:
    """However many read: those that do not read have few each, and come again and again."""
    table = Table(32 * MB)
    stalled = table.add(8, "readers")
    readers = table.add(10, "readers")
    for number in range(60):
        table.now_s += 0.1
        table.read(readers, 6_554)  # 64 KiB/s
        stalled += table.add(1, f"stalled {number}")
    assert gone(readers) == 0
    assert gone(stalled) > 20


def test_whoever_stops_reading_is_soon_like_the_others() -> None:
    table = Table(20 * MB)
    fast = table.add(4, "a")
    table.now_s += 1.0
    table.read(fast, MB // 2)
    others = table.add(5, "b")
    table.now_s += READ_S
    table.read(others, MB // 2)
    table.ledger.free(MB)
    assert (gone(fast), gone(others)) == (2, 0)


def test_a_drop_now_and_then_saves_nobody() -> None:
    table = Table(8 * MB)
    dripping = table.add(8, "a")
    for _ in range(40):
        table.now_s += 1.0
        table.read(dripping, 1_000)
    newcomers = [*table.add(2, "b"), *table.add(2, "c")]
    assert (gone(newcomers), gone(dripping)) == (0, 4)


def test_of_new_ones_the_first_goes() -> None:
    """Within a second nobody can say who reads."""
    table = Table(4 * MB)
    answers: list[Item] = []
    for number in range(10):
        table.now_s += 0.01
        answers += table.add(1, f"{number % 3}")
    assert gone(answers) in (6, 7)
    assert not any(each.gone for each in answers[7:])


def test_what_was_taken_meanwhile_holds_no_room() -> None:
    table = Table(20 * MB)
    readers = table.add(20, "a")
    table.now_s += 9.0
    table.read(readers, MB)
    newcomers = table.add(3, "b")
    assert gone(readers) == 0
    assert gone(newcomers) == 0
    assert table.ledger.held_bytes == 20 * 20_000 + 3 * MB
