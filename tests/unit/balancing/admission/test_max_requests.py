"""How many requests a backend and a pool may have at the same time."""

import pytest

from penstock.balancing.admission.admission import Rules
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Full
from tests.unit.balancing.admission.lines import FILLS, Door


def limited(
    *names: str, each: int | None = None, together: int | None = None, enabled: bool = True
) -> Door:
    door = Door(*names, enabled=enabled)
    for backend in door.backends:
        backend.max_requests = each
    door.fleet = Fleet((Pool("p", door.backends, door.policy, max_requests=together),))
    return door


def counts(door: Door) -> list[int]:
    return [backend.own.requests for backend in door.backends]


@pytest.mark.parametrize(("each", "together"), [(2, None), (None, 4), (3, 4)])
@pytest.mark.parametrize("generates", [True, False])
def test_what_is_over_waits_until_another_has_ended(
    each: int | None, together: int | None, *, generates: bool
) -> None:
    door = limited("a", "b", each=each, together=together)
    tickets = [door.enter(10, 0.0, generates=generates) for _ in range(6)]
    for ticket in tickets[:4]:
        door.first(ticket, 0.1)
    assert door.wake(0.2) == []
    assert sum(counts(door)) == 4
    assert door.admission.waiting == 2
    door.finish(tickets[0], 1.0)
    assert len(door.wake(1.0)) == 1
    assert sum(counts(door)) == 4


def test_a_dearer_backend_takes_what_one_that_is_full_cannot() -> None:
    door = limited("a", "b")
    door.policy.prices = {"a": 1.0, "b": 1.05}
    door.backends[0].max_requests = 1
    tickets = [door.enter(10, 0.0) for _ in range(2)]
    door.wake(0.1)
    assert [door.leases[ticket].backend.name for ticket in tickets] == ["a", "b"]


@pytest.mark.parametrize(("each", "together"), [(1, None), (None, 2)])
def test_without_admission_it_goes_elsewhere_or_is_refused(
    each: int | None, together: int | None
) -> None:
    door = limited("a", "b", each=each, together=together, enabled=False)
    for _ in range(2):
        door.enter(10, 0.0)
    with pytest.raises(Full):
        door.enter(10, 0.0)
    assert sum(counts(door)) == 2


def test_a_reload_changes_the_limit_and_the_window() -> None:
    door = limited("a", together=1)
    door.enter(10, 0.0)
    ticket = door.enter(10, 0.0)
    assert ticket.waits
    door.fleet = Fleet((Pool("p", door.backends, door.policy),))
    door.admission.follow(Rules(enabled=True, window_s=2.0))
    assert door.wake(0.1) == [ticket]
    assert door.admission.lines["p"].places.rooms[door.backends[0]].window_s == 2.0


def test_a_longer_window_sends_more_prompts_beforehand() -> None:
    sent = []
    for window_s in (0.1, 1.0):
        door = Door("a", window_s=window_s)
        tickets = [door.enter(2_000, 0.0) for _ in range(20)]
        sent.append(sum(ticket in door.leases for ticket in tickets))
    speed = door.backends[0].prefill_speed.work_per_s
    assert sent[1] == pytest.approx(speed / 2_000, abs=1.5)
    assert sent[0] < sent[1] / 2


def test_what_needs_no_room_waits_for_no_prompt() -> None:
    door = limited("a", each=2)
    long = door.enter(FILLS, 0.0)
    first = door.enter(10, 0.0, generates=False, name="x")
    waiting = [door.enter(10, 0.1, generates=False, name=name) for name in ("x", "y")]
    assert all(ticket.waits for ticket in waiting)
    door.finish(first, 1.0)
    assert door.wake(1.0) == [waiting[1]]  # y was given less
    assert door.leases[long].first_token_s is None


@pytest.mark.parametrize(("each", "together"), [(8, None), (None, 8)])
@pytest.mark.parametrize("generates", [True, False])
def test_one_place_is_left_to_a_flow_that_has_none(
    each: int | None, together: int | None, *, generates: bool
) -> None:
    door = limited("a", each=each, together=together)
    door.finish(door.enter(10, 0.0, name="victim", generates=generates), 0.0)
    for number in range(12):
        ticket = door.enter(10, 0.1 * number, name="attacker", generates=generates)
        if ticket in door.leases:
            door.first(ticket, 0.1 * number)
        door.wake(0.1 * number + 0.05)
        for lease in door.leases.values():
            if not lease.ended and lease.first_token_s is None:
                lease.first_token(0.1 * number + 0.06)
    assert counts(door) == [7]
    victim = door.enter(10, 5.0, name="victim", generates=generates)
    assert victim in door.leases or door.wake(5.0) == [victim]
    assert counts(door) == [8]


def test_one_flow_alone_has_all_places() -> None:
    door = limited("a", each=8)
    for _ in range(9):
        ticket = door.enter(10, 0.0, name="only")
        if ticket in door.leases:
            door.first(ticket, 0.1)
    assert counts(door) == [8]


def test_a_flow_that_must_wait_for_its_own_requests_keeps_no_other_waiting() -> None:
    door = Door("a", shares=(0.0, 0.0), classes=("high", "low"))
    door.backends[0].max_requests = 2
    door.finish(door.enter(10, 0.0, name="victim", rank=1, generates=False), 0.0)
    running = [door.enter(10, 0.1, name=name, generates=False) for name in ("high", "other")]
    assert [ticket in door.leases for ticket in running] == [True, True]
    waits = door.enter(10, 0.2, name="high", generates=False)
    victim = door.enter(10, 0.3, name="victim", rank=1, generates=False)
    assert waits.waits
    assert victim.waits
    door.finish(running[1], 1.0)
    assert door.wake(1.0) == [victim]


def test_what_needs_no_room_takes_no_place_from_what_is_next() -> None:
    door = limited("a", each=3)
    door.finish(door.enter(10, 0.0, name="victim"), 0.0)
    running = [door.enter(500, 0.1, name=name, generates=False) for name in ("x", "y")]
    door.enter(10, 0.1, name="victim", generates=False)
    waiting = [door.enter(500, 0.2, name=name, generates=False) for name in ("x", "y")]
    victim = door.enter(10, 0.3, name="victim")
    for ticket in running:
        door.finish(ticket, 1.0)
    assert door.wake(1.0)[0] is victim
    assert sum(ticket in door.leases for ticket in waiting) == 1
