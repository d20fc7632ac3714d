"""A bounded table: whoever fills it displaces its own."""

from random import Random

import pytest

from penstock.balancing.fair_table import FairTable, KeyTable
from penstock.balancing.policies.token_cost import SESSIONS_MAX
from penstock.balancing.response_owners import KEPT_S, OWNERS_MAX, ResponseOwners


def filled(places: int, **entries: int) -> FairTable[int]:
    """Let the owners put their entries in turn. `entries`: by owner."""
    table: FairTable[int] = FairTable(places)
    for owner, count in entries.items():
        for number in range(count):
            table.put(owner, number, number)
    return table


def test_one_owner_alone_may_fill_it_and_its_oldest_go() -> None:
    table = filled(10, a=10)
    assert [table.put("a", number, number) for number in range(10, 15)] == [0, 1, 2, 3, 4]
    assert len(table) == 10


def test_what_is_put_again_is_the_youngest() -> None:
    table: FairTable[int] = FairTable(2)
    for key in (1, 2, 1, 3):
        table.put("a", key, key)
    assert (table.find("a", 1), table.find("a", 2), table.find("a", 3)) == (1, None, 3)


def test_another_gets_its_share_of_a_full_one_and_no_more() -> None:
    table = filled(10, attacker=20, victim=20)
    assert (len(table.of("attacker")), len(table.of("victim"))) == (5, 5)
    for number in range(100, 200):
        table.put("attacker", number, number)
    assert list(table.of("victim")) == [15, 16, 17, 18, 19]
    assert len(table) == 10


def test_more_owners_than_places() -> None:
    table: FairTable[int] = FairTable(4)
    for number in range(100):
        table.put(f"o{number}", 0, number)
        assert len(table) <= 4
        assert table.find(f"o{number}", 0) == number
    assert len(table._tables) <= 5


class Owner(str):
    """An owner that counts how often any of them is looked at."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Owner.looks += 1
        return super().__hash__()


def test_a_new_owner_costs_the_same_however_many_there_are() -> None:
    """Anybody may come from many addresses. All of them share the loop."""
    table: FairTable[int] = FairTable(10_000)
    for number in range(10_000):
        table.put(Owner(number), number, 0)
    before = Owner.looks
    assert [table.put(Owner(f"new {each}"), each, 0) for each in range(100)] == list(range(100))
    assert Owner.looks - before <= 100 * 20


def test_the_largest_owner_pays_whatever_came_before() -> None:
    """The numbers of entries that are kept in step agree with those that are counted anew."""
    rng = Random(7)
    table: FairTable[int] = FairTable(30)
    for turn in range(5_000):
        owner, key = f"o{int(12 * rng.random() ** 2)}", rng.randrange(12)
        before = {each: len(of) for each, of in table._tables.items()}
        if rng.random() < 0.2 and table.find(owner, key) is not None:
            table.remove(owner, key)
            continue
        if rng.random() < 0.02:
            table.shrink(len(table) // 2)
            continue
        table.put(owner, key, turn)
        payers = [each for each, size in before.items() if len(table.of(each)) < size]
        assert [before[each] for each in payers] in ([], [max(before.values(), default=0)])
        assert len(table) == sum(len(of) for of in table._tables.values()) <= 30


def test_what_is_removed_makes_room() -> None:
    table: FairTable[int] = FairTable(1)
    table.put("a", 1, 1)
    table.remove("a", 1)
    assert table.put("b", 1, 2) is None
    assert (len(table), table.find("a", 1), table.find("b", 1)) == (1, None, 2)


def test_sessions_of_one_client_make_no_other_s_forgotten() -> None:
    homes: KeyTable[str] = KeyTable(SESSIONS_MAX)
    for number in range(100):
        homes.put(f"s{number}", "a", "victim")
    for number in range(2 * SESSIONS_MAX):
        homes.put(str(number), "b", "attacker")
    assert {homes.find(f"s{number}") for number in range(100)} == {"a"}
    assert len(homes) == SESSIONS_MAX


def test_a_session_may_come_from_another_address() -> None:
    homes: KeyTable[str] = KeyTable(SESSIONS_MAX)
    for client in ("x", "y", "x"):
        homes.put("s", client, client)
        assert (homes.find("s"), len(homes)) == (client, 1)


@pytest.mark.parametrize("tenants", [("victim", "attacker"), ("", "")])
def test_nor_do_responses_of_one_tenant_or_address(tenants: tuple[str, str]) -> None:
    """Forgotten, a response would be another tenant's no more."""
    owners = ResponseOwners()
    owners.put("resp_1", "a", 0.0, tenants[0], "victim")
    for number in range(2 * OWNERS_MAX):
        owners.put(f"other_{number}", "b", 1.0, tenants[1], "attacker")
    assert owners.find("resp_1", 2.0) == "a"
    assert owners.is_foreign("resp_1", tenants[1], 2.0) is bool(tenants[0])
    if not tenants[0]:
        owners.put("resp_1", "b", 2.0, client="attacker")  # a follow-up through another address
        assert owners.find("resp_1", 2.0) == "b"
    assert len(owners.table) == OWNERS_MAX


def test_an_id_may_be_anothers_once_it_is_forgotten() -> None:
    owners = ResponseOwners()
    owners.put("resp_1", "a", 0.0, "x")
    owners.put("resp_1", "b", 2 * KEPT_S, "y")
    assert owners.find("resp_1", 2 * KEPT_S) == "b"
    owners.put("resp_2", "c", 2 * KEPT_S, "x")
    assert (len(owners.table), owners.is_foreign("resp_1", "x", 2 * KEPT_S)) == (2, True)


def test_a_smaller_table_keeps_the_youngest_of_each() -> None:
    table = filled(20, attacker=15, victim=3)
    assert table.shrink(8) == list(range(10))
    assert (list(table.of("attacker")), list(table.of("victim"))) == ([*range(10, 15)], [0, 1, 2])
    assert (table.shrink(20), len(table), table.put("victim", 3, 3)) == ([], 8, None)


def test_fewer_are_remembered_on_demand() -> None:
    remembered: KeyTable[str] = KeyTable(SESSIONS_MAX)
    keys = [f"k{number}" for number in range(100)]

    def fill() -> None:
        for key in keys:
            remembered.put(key, "a", "x")

    fill()
    remembered.limit(40)
    assert [key for key in keys if remembered.find(key)] == keys[60:]
    fill()
    assert len(remembered) == 40
    remembered.halve()
    assert [key for key in keys if remembered.find(key)] == keys[80:]
    fill()
    assert len(remembered) == 40  # halving is for once
    for _ in range(9):
        remembered.halve()
    assert len(remembered) == 0
