"""The requests that are kept: which ones, whose, and how many bytes they take at most."""

import sys
from typing import Any

import pytest

from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.telemetry.recent import (
    BYTES_MAX,
    BYTES_USUAL,
    ENTRIES_MAX,
    FAILED_MAX,
    LATEST_MAX,
    LATEST_PER_S,
    SAMPLED_EVERY,
    SLOW_MAX,
    SLOW_WINDOW_S,
    TRIES_MAX,
    Kept,
    Recent,
)
from penstock.proxy.telemetry.record import Record


def request(
    owner: str,
    name: str,
    at_s: float = 1_000.0,
    *,
    ttft_s: float = 0.1,
    total_s: float = 1.0,
    status: int = 200,
    tries: int = 1,
) -> Kept:
    record = Record(at_s, at_s + 0.01, at_s + 0.02)
    record.read_s = at_s + 0.03
    for number in range(tries):
        record.begin_try(f"b{number}", "p", "cost", at_s + 0.04)
        record.tries[-1].sent_s, record.tries[-1].first_byte_s = at_s + 0.05, at_s + 0.06
        record.tries[-1].failed("reset", at_s + 0.07)
    record.tries[-1].first_token_s = at_s + ttft_s
    record.ended_s = at_s + total_s
    record.status, record.whole = status, status < 400
    return Kept(record, name.encode(), owner, owner, "m", stream=True)


@pytest.fixture
def recent() -> Recent:
    return Recent()


def names(found: list[Kept]) -> list[str]:
    return [each.request_id.decode() for each in found]


def test_the_latest_come_first_and_a_failure_outlives_them(recent: Recent) -> None:
    recent.add(request("one", "bad", status=502))
    for number in range(LATEST_MAX + 2):
        recent.add(request("one", f"{number}", at_s=float(number), ttft_s=0.2, total_s=2.0))
    assert names(recent.all())[:2] == [f"{LATEST_MAX + 1}", f"{LATEST_MAX}"]
    assert names(recent.failed()) == ["bad"]
    assert names(recent.all())[-1] == "bad"


def test_who_sends_many_a_second_has_some_of_each_second_and_others_have_all_theirs(
    recent: Recent,
) -> None:
    for second in range(3):
        for number in range(10 * LATEST_PER_S):
            recent.add(request("many", f"{second}.{number}", at_s=2_000.0 + second))
        recent.add(request("few", f"mine {second}", at_s=2_000.0 + second))
    latest = [name for name in names(recent.all()) if name[0] == "2"]
    assert LATEST_PER_S <= len(latest) <= LATEST_PER_S + 12  # the sample, and the slowest
    mine = [name for name in names(recent.all()) if "mine" in name]
    assert mine == ["mine 2", "mine 1", "mine 0"]


def test_a_sample_reaches_further_back_than_the_latest(recent: Recent) -> None:
    for number in range(10_000):
        recent.add(request("one", f"{number}", at_s=1_000.0 + number))
    seen = [int(name) for name in names(recent.all())]
    assert len([each for each in seen if (each + 1) % SAMPLED_EVERY == 0]) > 100
    assert min(seen) < 100


def test_the_slowest_are_by_turns_slow_to_begin_and_long(recent: Recent) -> None:
    for number in range(500):
        recent.add(request("one", f"{number}"))
    recent.add(request("one", "late", ttft_s=9.0, total_s=9.5))
    recent.add(request("one", "later", ttft_s=10.0, total_s=10.5))
    recent.add(request("one", "long", ttft_s=0.1, total_s=60.0))
    for number in range(500):
        recent.add(request("one", f"{number}"))
    assert names(recent.slow())[:3] == ["later", "long", "late"]


def test_the_slowest_are_forgotten_after_two_windows(recent: Recent) -> None:
    recent.add(request("one", "late", 1_000.0, ttft_s=9.0, total_s=9.0))
    recent.add(request("one", "a", 1_000.0 + 1.2 * SLOW_WINDOW_S))
    assert "late" in names(recent.slow())
    recent.add(request("one", "b", 1_000.0 + 2.4 * SLOW_WINDOW_S))
    assert "late" not in names(recent.slow())
    recent.add(request("one", "c", 1_000.0 + 9 * SLOW_WINDOW_S))
    assert names(recent.slow()) == ["c"]


@pytest.mark.parametrize("attackers", [1, 20])
def test_a_flood_pushes_out_nobody_else(recent: Recent, attackers: int) -> None:
    """Slower, failing, and under the victim's own ids."""
    victims: list[tuple[str, dict[str, Any]]]
    victims = [("fine", {}), ("bad", {"status": 500}), ("late", {"ttft_s": 3.0, "total_s": 4.0})]
    for name, how in victims:
        recent.add(request("victim", name, **how))
    for number in range(20_000):
        flood: dict[str, Any] = {"status": 400 + number % 200, "ttft_s": 30.0, "total_s": 31.0}
        recent.add(request(f"attacker-{number % attackers}", "late", **flood))
    of_victim: dict[str, list[str]] = {name: [] for name in ("all", "failed", "slow")}
    for name, found in of_victim.items():
        found += names([each for each in getattr(recent, name)() if each.owner == "victim"])
    assert of_victim["all"] == ["late", "bad", "fine"]
    assert of_victim["failed"] == ["bad"]
    assert set(of_victim["slow"]) == {"fine", "bad", "late"}
    assert len(recent.failed()) == FAILED_MAX


def slow_names(recent: Recent, owner: str) -> list[str]:
    return names([each for each in recent.slow() if each.owner == owner])


@pytest.mark.parametrize("owners", [7, 60, 65, 300])
@pytest.mark.parametrize("later", [False, True])
def test_fast_requests_of_many_others_push_out_no_slow_one(
    recent: Recent, owners: int, *, later: bool
) -> None:
    slow = [request("victim", f"{number}", ttft_s=2.5, total_s=2.6) for number in range(5)]
    fast = [request(f"{number % owners}", "fast", total_s=0.2) for number in range(300)]
    for each in [*fast, *slow] if later else [*slow, *fast]:
        recent.add(each)
    assert set(slow_names(recent, "victim")) == {"0", "1", "2", "3", "4"}
    assert slow_names(recent, "victim") == names(recent.slow()[:5])


def test_of_equal_owners_the_fastest_goes(recent: Recent) -> None:
    for number in range(SLOW_MAX):
        recent.add(request(f"{number}", f"{number}", ttft_s=1.0 + number, total_s=1.0 + number))
    recent.add(request("new", "fast", ttft_s=0.5, total_s=0.5))
    assert "fast" not in names(recent.slow())
    recent.add(request("new", "slow", ttft_s=30.5, total_s=30.5))
    kept = names(recent.slow())
    assert "slow" in kept
    assert "0" not in kept
    assert len(kept) == SLOW_MAX


@pytest.mark.parametrize("attackers", [1, 7, 30])
def test_slower_ones_that_came_before_hide_no_slow_one(recent: Recent, attackers: int) -> None:
    for number in range(1_000):
        recent.add(request(f"a{number % attackers}", "a", ttft_s=300.0, total_s=300.0))
    recent.add(request("victim", "late", ttft_s=3.0, total_s=4.0))
    for number in range(1_000):
        recent.add(request(f"a{number % attackers}", "a", ttft_s=400.0, total_s=400.0))
    assert slow_names(recent, "victim") == ["late"]


def test_a_thousand_owners_take_no_more_than_one(recent: Recent) -> None:
    for number in range(5_000):
        recent.add(request(f"{number}", f"{number}", total_s=float(number)))
    assert len(recent.slow()) <= 4 * SLOW_MAX
    assert len(recent.all()) <= ENTRIES_MAX


def test_all_of_them_together_are_small(recent: Recent) -> None:
    """With the longest ids, and attempts at each of a hundred backends."""
    for number in range(30_000):
        slow_s = 10.0 if number % 50 == 0 else 1.0
        kept = request(
            f"tenant-{number % 7}",
            f"{number:0128}",
            1_000.0 + number / 30,
            ttft_s=slow_s,
            total_s=slow_s,
            status=500 if number % 5 == 0 else 200,
            tries=100,
        )
        kept.record.usage = Usage(100_000, 20_000, 5_000)
        recent.add(kept)
    kept_ones = recent.all()
    assert len(kept_ones) > 0.7 * ENTRIES_MAX
    assert max(len(each.record.tries) for each in kept_ones) == TRIES_MAX
    assert kept_ones[0].record.tries[-1].backend == "b99"
    assert _bytes(kept_ones, set()) / len(kept_ones) < BYTES_MAX
    usual = [request("tenant", f"{number:032}") for number in range(1_000)]
    for kept in usual:
        kept.record.usage = Usage(100_000, 20_000, 5_000)
    assert _bytes(usual, set()) / len(usual) < BYTES_USUAL


def _bytes(found: Any, seen: set[int]) -> int:
    """What an object holds, down to its numbers, but for what was seen before."""
    if id(found) in seen:
        return 0
    seen.add(id(found))
    size = sys.getsizeof(found)
    if isinstance(found, (list, tuple)):
        return size + sum(_bytes(each, seen) for each in found)
    for kind in type(found).__mro__:
        for name in getattr(kind, "__slots__", ()):
            size += _bytes(getattr(found, name), seen)
    return size
