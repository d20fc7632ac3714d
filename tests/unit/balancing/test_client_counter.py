"""Is it more than one client? In constant memory, however many there are."""

from collections.abc import Iterable

import pytest

from penstock.balancing.outliers.penalties import NAMED_MAX, NAMES_MAX, ClientCounter


def counted(clients: Iterable[str]) -> ClientCounter:
    counter = ClientCounter()
    for client in clients:
        counter.add(client)
    return counter


@pytest.mark.parametrize(
    ("clients", "others"),
    [("a" * 9, 0), ("aaab" * 9, 9), ("aaaaaaaaab", 1), ("abc" * 3, 6), ("baaa", 1)],
)
def test_others_are_counted_beside_a_flood(clients: str, others: int) -> None:
    counter = counted(clients)
    assert (counter.count, counter.others) == (len(clients), others)


def test_who_was_the_most_frequent_long_ago_gives_way() -> None:
    assert counted("a" * 10_000 + "b" * (NAMED_MAX + 1)).most == "b"


def test_what_nobody_has_caused_is_of_others() -> None:
    counter = counted("a")
    counter.add(None)
    assert (counter.count, counter.others, counter.most) == (2, 1, "a")


@pytest.mark.parametrize("before", [0, 1, 2, 3 * NAMES_MAX])
def test_the_loudest_is_none_of_the_others_whenever_it_comes(before: int) -> None:
    counter = counted([*map(str, range(before)), *["attacker"] * 1_000])
    assert 8 * before // 9 <= counter.others + 1 <= before + NAMES_MAX
    assert counter.most == "attacker"


def test_of_many_clients_none_is_the_loudest() -> None:
    counter = counted(map(str, range(1_000)))
    assert counter.others >= 800
    counter.clear()
    counter.add(None)
    assert counter.others == 1


@pytest.mark.parametrize("clients", [2, NAMES_MAX, 1_000])
def test_a_flood_among_many_clients_is_one_client(clients: int) -> None:
    """Nine of ten events are one client's: however many there are, a tenth is of others."""
    names = ("flood" if number % 10 else f"client {number % clients}" for number in range(3_000))
    counter = counted(names)
    assert counter.most == "flood"
    assert counter.others <= 302


@pytest.mark.parametrize(("clients", "left"), [("aba", 1), ("a" * 1_000 + "b" * 3, 3)])
def test_what_is_acquitted_is_the_most_frequent_client_alone(clients: str, left: int) -> None:
    """Or probes between the failures would hide a backend that fails everybody."""
    counter = counted(clients)
    counter.acquit()
    assert (counter.count, counter.others) == (left, 0)
    counter.add("c")
    counter.add("a")
    assert (counter.count, counter.others) == (left + 2, 2)
    counter.clear()
    assert (counter.count, counter.others, counter.most) == (0, 0, "")
