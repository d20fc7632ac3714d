"""Who gives up what it keeps when memory is short, and who does not."""

from dataclasses import dataclass
from typing import cast

import pytest

from penstock.proxy.data.client import Client
from penstock.proxy.data.kept import losers


@dataclass(eq=False)
class Keeper:
    """A client that keeps so much, and more if half bodies count."""

    holder: str
    idle_bytes: int
    body_bytes: int = 0
    proven: bool = True

    def kept_bytes(self, *, refusing: bool) -> int:
        return self.idle_bytes + self.body_bytes * refusing


def who_loses(keepers: list[Keeper], over_bytes: int, *, refusing: bool = False) -> list[Keeper]:
    found, freed_bytes = losers(cast(list[Client], keepers), over_bytes, refusing=refusing)
    lost = cast(list[Keeper], found)
    assert freed_bytes == sum(each.kept_bytes(refusing=refusing) for each in lost)
    return lost


@pytest.mark.parametrize("victims_first", [False, True])
def test_the_holder_that_keeps_most_loses_its_largest(victims_first: bool) -> None:
    victims = [Keeper("victim", 50_000) for _ in range(10)]
    attackers = [Keeper("attacker", size) for size in range(1_000, 101_000, 1_000)]
    both = [*victims, *attackers] if victims_first else [*attackers, *victims]
    assert who_loses(both, 297_000) == attackers[:-4:-1]  # 100, 99 and 98 thousand


def test_no_more_than_half_of_what_it_keeps_goes_at_once() -> None:
    """What is then still short is found at the next look, with new figures."""
    attackers = [Keeper("attacker", 10_000) for _ in range(100)]
    victims = [Keeper("victim", 10_000) for _ in range(40)]
    lost = who_loses([*victims, *attackers], 2_000_000)
    assert not any(each.holder == "victim" for each in lost)
    assert len(lost) == 51


def test_holders_that_keep_alike_lose_alike() -> None:
    many = [Keeper(name, 10_000) for name in "abcd" for _ in range(20)]
    lost = who_loses(many, 400_000)
    assert sorted(each.holder for each in lost) == sorted("abcd" * 10)


def test_half_a_body_goes_only_when_requests_are_refused() -> None:
    sender, idle = Keeper("a", 0, body_bytes=1_000_000), Keeper("a", 30_000)
    assert who_loses([sender, idle], 200_000) == [idle]
    assert who_loses([sender, idle], 200_000, refusing=True) == [sender]


def test_nobody_loses_what_is_little_beside_what_is_lacking() -> None:
    """What others hold is work under way, or waits in a table of its own."""
    victims = [Keeper("victim", 4_096, body_bytes=50_000) for _ in range(5)]
    assert not who_loses(victims, 25_000_000, refusing=True)
    assert who_loses(victims, 1_000_000, refusing=True)


def test_strangers_and_those_that_keep_nothing_are_left_alone() -> None:
    nobody = [Keeper("a", 0), Keeper("b", 30_000, proven=False)]
    assert not who_loses(nobody, 1_000_000, refusing=True)
    assert not who_loses([Keeper("a", 30_000)], 0, refusing=True)
