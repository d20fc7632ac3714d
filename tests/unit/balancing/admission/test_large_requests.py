"""Which backends take requests that an engine works on for long, or that may fill it."""

from itertools import pairwise
from typing import Any

import pytest

from penstock.balancing.admission.queued_request import QueuedRequest, WaitReason
from penstock.balancing.backend import State
from tests.unit.balancing.admission.door import HIGH_LOW, Door, asks

# Four seconds of prefill and more, at the speed that is assumed at first.
LONG = 50_000
LONG_S = 5.0
MANY: dict[str, Any] = {"choices": 128, "max_tokens": 1_000, "output_tokens": 10.0}
LIST: dict[str, Any] = {"prompts": 1_000, "max_tokens": 2}


def hosts(door: Door, name: str) -> set[str]:
    """Where requests of a tenant run."""
    return {door.where(each) for each in door.running if each.name == name}


# Long prompts ------------------------------------------------------------------------------


def with_long_prompts(*names: str, asks_tokens: int) -> Door:
    """A tenant sends a long prompt for each backend, and another one asks for so many tokens."""
    door = Door(*names)
    if asks_tokens:
        asks(door, "other", 10.0, asks_tokens)
    for _ in range(len(names) + 2):
        door.enter(LONG, 10.1, name="long")
    return door


@pytest.mark.parametrize(
    ("backends", "asks_tokens", "left"), [(4, 10_000, 1), (8, 30_000, 2), (4, 0, 0), (4, 10, 0)]
)
def test_one_tenant_leaves_backends_without_its_long_prompts_while_others_ask(
    backends: int, asks_tokens: int, left: int
) -> None:
    """It leaves none to others that ask for hardly anything."""
    door = with_long_prompts(*"abcdefgh"[:backends], asks_tokens=asks_tokens)
    assert len(hosts(door, "long")) == backends - left
    victim = door.enter(500, 10.2, name="other")
    assert door.is_sent(victim) is bool(left)


def test_two_tenants_with_long_prompts_have_all_backends() -> None:
    door = Door(*"abcd")
    for _ in range(4):
        for name in ("x", "y"):
            door.enter(LONG, 10.0, name=name)
    assert len(hosts(door, "x") | hosts(door, "y")) == 4


def test_what_a_long_prompt_waits_for_is_told() -> None:
    door = with_long_prompts(*"abcd", asks_tokens=10_000)
    assert door.forecast(LONG, 10.2, name="long").reason in (WaitReason.LARGE, WaitReason.TURN)
    assert {each.reason for each in door.pool.queue.oldest(9)} & {WaitReason.LARGE}


def long_beside_streams(rank: int, *, gap_s: float = 0.1, reads: bool = True) -> list[float]:
    """When long prompts are sent that always wait, beside streams of the high class. `gap_s`: the
    time between two of their tokens."""
    door, sent_s, now_s = Door("a", **HIGH_LOW), [], 0.0
    streams = [door.enter(100, 0.0, name="high") for _ in range(3)]
    for stream in streams:
        door.first(stream, 0.1)
        door.leases[stream].held_up = not reads
    for _ in range(8):
        door.enter(LONG, 0.2, name="long", rank=rank)
    while now_s < 100.0:
        now_s += 0.1
        for stream in streams:
            door.leases[stream].tokens(round(0.1 / gap_s))
        for request in door.running:
            lease = door.leases[request]
            if request not in streams and now_s - lease.began_s > LONG_S:
                door.finish(request, now_s)
        if door.wake(now_s):
            sent_s.append(now_s)
    return sent_s


def test_beside_slow_streams_of_a_higher_class_long_prompts_take_a_third_of_the_time() -> None:
    low, high = long_beside_streams(1), long_beside_streams(0)
    assert len(high) == 7  # of its own class: one after the other
    gaps = [after - before for before, after in pairwise(low)]
    assert min(gaps) > 2.0 * LONG_S


@pytest.mark.parametrize(("gap_s", "reads"), [(0.01, True), (0.1, False)])
def test_beside_quick_streams_and_clients_that_do_not_read_they_follow_one_another(
    gap_s: float, *, reads: bool
) -> None:
    assert len(long_beside_streams(1, gap_s=gap_s, reads=reads)) == 7


# Requests that may fill an engine ----------------------------------------------------------


@pytest.mark.parametrize("many", [MANY, LIST])
def test_while_others_ask_requests_that_fill_an_engine_have_one_backend(
    many: dict[str, Any],
) -> None:
    door = Door("a", "b", kv_tokens=40_000)
    asks(door, "other", 0.0, 200)
    giants = [door.enter(50, 0.0, name="giants", **many) for _ in range(4)]
    (first,) = [request for request in giants if door.is_sent(request)]
    door.leases[first].end(1.0)
    asks(door, "other", 1.0, 200)
    assert sum(door.is_sent(request) for request in giants) == 2  # the next one


FEW: dict[str, Any] = {"choices": 4, "max_tokens": 100}


@pytest.mark.parametrize(
    ("backends", "others_ask", "fields", "count", "sent"),
    [("abcdefgh", True, MANY, 10, 2), ("abcd", False, MANY, 4, 4), ("ab", True, FEW, 6, 6)],
    ids=["of eight they have two", "while nobody else asks, all", "a few choices fill nothing"],
)
def test_how_many_backends_requests_with_many_choices_have(
    backends: str, fields: dict[str, Any], count: int, sent: int, *, others_ask: bool
) -> None:
    door = Door(*backends, kv_tokens=40_000)
    if others_ask:
        asks(door, "other", 0.0, 200)
    names = [f"{number}" if others_ask else "giants" for number in range(count)]
    requests = [door.enter(50, 0.0 if others_ask else 5.0, name=name, **fields) for name in names]
    waits = [request for request in requests if not door.is_sent(request)]
    assert count - len(waits) == sent
    assert len({door.where(each) for each in door.running}) == min(sent, len(backends))
    assert {request.reason for request in waits} <= {WaitReason.CHOICES, WaitReason.TURN, None}


def beside_giant(*names: str) -> tuple[Door, QueuedRequest]:
    """A request that fills an engine runs at the first backend, and another one comes."""
    door = Door(*names, prices={name: float(name != "a") for name in names}, kv_tokens=400_000)
    giant = door.enter(50, 0.0, name="giants", choices=300, max_tokens=100)
    assert door.where(giant) == "a"
    for index in range(300):
        door.leases[giant].first_token(0.1, index)
    for backend in door.backends[1:]:
        backend.state = State.EJECTED
    return door, door.enter(200, 1.0, name="victim", max_tokens=32)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_request_that_fills_an_engine_closes_no_backend_while_no_other_can_serve(
    names: str,
) -> None:
    door, victim = beside_giant(*names)
    assert door.is_sent(victim)
