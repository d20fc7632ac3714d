"""What waits while no backend of its pool can serve it."""

from typing import Any

import pytest

from penstock.balancing.admission.controller import Rules
from penstock.balancing.admission.dry_run import Fate
from penstock.balancing.admission.queued_request import Elsewhere, QueuedRequest, TooLate
from penstock.balancing.backend import State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import NoBackend
from penstock.balancing.lease import Lease
from tests.unit.balancing.admission.door import FILLS, HIGH_LOW, Door, Priced, full

PATIENT: dict[str, Any] = {"deadline_s": 30.0, "impatient": False}


def starting(*names: str, park_s: float = 60.0, **rules: Any) -> Door:
    door = Door(*names, park_s=park_s, **rules)
    set_state(door, State.STARTING)
    return door


def set_state(door: Door, state: State) -> None:
    for backend in door.backends:
        backend.state = state


def test_a_request_waits_for_a_backend_that_starts() -> None:
    door = starting("a")
    request = door.enter(100, 0.0)
    assert request.waits
    assert door.admission.parked("p") == (1, 100)
    assert door.wake(30.0) == []
    set_state(door, State.READY)
    assert door.wake(30.1) == [request]
    assert door.admission.parked("p") == (0, 0)


def test_it_waits_no_longer_than_is_configured() -> None:
    door = starting("a", park_s=5.0)
    door.enter(100, 0.0)
    door.enter(100, 1.0)
    door.wake(5.0)
    assert door.outcomes() == []
    door.wake(5.2)
    assert door.outcomes() == [NoBackend]
    door.wake(6.3)
    assert door.outcomes() == [NoBackend] * 2
    assert door.admission.waiting == 0


@pytest.mark.parametrize(
    ("park_s", "admission", "response_id"),
    [(0.0, True, None), (60.0, False, None), (60.0, True, "resp_1")],
    ids=["by default", "without admission", "for a stored response"],
)
def test_nothing_waits_for_a_backend(
    park_s: float, response_id: str | None, *, admission: bool
) -> None:
    door = starting("a", park_s=park_s)
    door.fleet = Fleet((Pool("p", door.backends, door.policy, admission=admission),))
    with pytest.raises(NoBackend):
        door.enter(100, response_id=response_id)
    assert door.admission.waiting == 0


def test_the_time_without_a_backend_does_not_count_for_a_class() -> None:
    door = starting("a")
    first = door.enter(FILLS, 0.0, deadline_s=2.0, impatient=False)
    second = door.enter(FILLS, 1.0, deadline_s=2.0, impatient=False)
    door.wake(40.0)
    set_state(door, State.READY)
    door.backends[0].max_requests = 1
    assert door.wake(40.1) == [first]
    assert second.waited_s(41.1) == pytest.approx(1.0)
    door.wake(41.2)
    assert door.outcomes() == [Lease]
    door.wake(42.3)
    assert door.outcomes() == [Lease, TooLate]


def test_it_counts_for_a_client_that_said_how_long_it_waits() -> None:
    door = starting("a")
    door.enter(100, 0.0, deadline_s=2.0)
    door.wake(1.0)
    assert door.outcomes() == []
    door.wake(2.1)
    assert door.outcomes() == [TooLate]


def test_what_waited_for_room_waits_for_a_backend_when_the_last_one_is_lost() -> None:
    door = full("a", park_s=60.0)
    request = door.enter(100, 0.01, deadline_s=3.0, impatient=False)
    set_state(door, State.EJECTED)
    assert door.wake(1.0) == []
    assert door.wake(50.0) == []
    assert request.waits
    set_state(door, State.READY)
    assert door.wake(50.1) == [request]


def test_no_more_waits_than_the_backends_could_serve_in_time() -> None:
    door = starting("a")
    speed = door.backends[0].prefill_speed.work_per_s
    fits = int(0.6 * 10.0 * speed / 5_000)  # 60 % of the deadline
    flood = [
        door.enter(5_000, 0.0, deadline_s=10.0, impatient=False, name="flood")
        for _ in range(3 * fits)
    ]
    assert sum(request.waits for request in flood) == pytest.approx(fits, abs=2)
    assert door.enter(5_000, 0.0, deadline_s=10.0, impatient=False, name="other").waits


def test_those_that_were_parked_go_in_the_order_of_classes_and_tenants() -> None:
    door = starting("a", **HIGH_LOW)
    flood = [door.enter(500, 0.0, rank=1, name="flood") for _ in range(20)]
    other = door.enter(500, 1.0, rank=1, name="other")
    high = door.enter(500, 2.0, name="third")
    set_state(door, State.READY)
    sent = door.wake(3.0)
    assert sent[0] is high
    assert sent.index(other) <= 2
    assert len(sent) < len(flood)


def test_embeddings_are_parked_too() -> None:
    door = starting("a")
    requests = [door.enter(200, 0.0, generates=False) for _ in range(5)]
    set_state(door, State.READY)
    assert door.wake(1.0) == requests


# One that a backend has failed -------------------------------------------------------------


def failed(door: Door, now_s: float = 0.0, **fields: Any) -> QueuedRequest:
    """All backends have failed it."""
    request = door.request(100, now_s, tried=door.backends, **fields)
    door.come(request, now_s)
    return request


def test_the_backend_that_has_failed_it_may_serve_it_and_others_when_it_is_back() -> None:
    door = starting("a")
    request = failed(door, name="failed")
    others = [door.enter(100, 0.1, name=f"{number}") for number in range(5)]
    set_state(door, State.READY)
    assert set(door.wake(0.5)) == {request, *others}


# Other pools -------------------------------------------------------------------------------


def two_pools(**rules: Any) -> Door:
    """Pools p and q with a backend each. Both serve everything, and p comes first."""
    door = Door("a", "z", **{"park_s": 60.0} | rules)
    a, z = door.backends
    door.fleet = Fleet((Pool("p", (a,), Priced()), Pool("q", (z,), Priced())))
    door.admission.follow(door.admission.rules)
    return door


def waiting(door: Door, pool: str) -> int:
    found = door.admission.pools.get(pool)
    return found.queue.waiting if found is not None else 0


def test_another_pool_serves_what_it_can_of_what_is_parked() -> None:
    door = two_pools()
    set_state(door, State.STARTING)
    requests = [door.enter(100, 0.0, model=model) for model in ("m", "n", "m", "m")]
    assert door.wake(1.0) == []
    z = door.backends[1]
    z.state, z.models = State.READY, {"m": b""}
    assert door.wake(2.0) == [requests[0], *requests[2:]]
    assert door.admission.parked("p") == (1, 100)


def test_a_request_for_the_first_pool_keeps_no_other_from_the_second() -> None:
    door = two_pools()
    set_state(door, State.STARTING)
    first = door.enter(100, 0.0, name="first", first_pool=True)
    other = door.enter(100, 0.1, name="other")
    door.backends[1].state = State.READY
    assert door.wake(0.5) == [other]
    assert first.waits


def full_second_pool(**rules: Any) -> Door:
    """The first pool is away, and the second has as many requests as it may have."""
    door = two_pools(**rules)
    a, z = door.backends
    a.state, z.max_requests = State.EJECTED, 1
    door.enter(100, name="before")
    assert z.own.requests == 1
    return door


def test_what_waits_in_a_later_pool_goes_to_the_one_before_when_that_is_back() -> None:
    door = full_second_pool()
    requests = [door.enter(100, 0.1, name=name) for name in ("x", "x", "y")]
    assert waiting(door, "q") == 3
    door.backends[0].state = State.READY
    assert set(door.wake(2.0)) == set(requests)
    assert {door.where(each) for each in requests} == {"a"}


def test_those_that_must_stay_keep_no_others_from_a_pool_that_is_back() -> None:
    door = full_second_pool()
    a, z = door.backends
    a.models, z.models = {"m": b""}, {"m": b"", "n": b""}
    stay = [door.enter(100, 0.1, name="x", model="n") for _ in range(200)]
    go = [door.enter(100, 0.2, name=name, model="m") for name in ("x", "y")]
    a.state = State.READY
    sent: list[QueuedRequest] = []
    for tick in range(20):
        sent += door.wake(1.0 + 0.1 * tick)
    assert set(sent) == set(go)
    assert all(each.waits for each in stay)


def test_what_a_better_pool_would_refuse_stays_until_its_own_pool_has_room() -> None:
    door = full_second_pool()
    running = door.running[0]
    requests = [door.enter(8_000, 0.1, deadline_s=4.0) for _ in range(2)]
    a = door.backends[0]
    a.state, a.max_requests, door.wakes_at_once = State.READY, 1, False
    for _ in range(20):  # more than it can serve in that time
        door.enter(8_000, 0.2, pool="p")
    door.wake(1.0)
    assert waiting(door, "q") == 2
    door.finish(running, 1.5)
    assert door.wake(1.5)[0] is requests[0]
    assert door.where(requests[0]) == "z"


@pytest.mark.parametrize("there", [True, False])
def test_one_whose_model_its_pool_has_lost_goes_to_another_pool_that_has_it_or_is_told(
    *, there: bool
) -> None:
    door = two_pools()
    a, z = door.backends
    a.max_requests = 1
    door.enter(100, model="m")
    request = door.enter(100, 0.1, model="m")
    assert waiting(door, "p") == 1
    a.models, z.models = {"other": b""}, {"m" if there else "other": b""}
    assert door.wake(1.0) == [request] * there
    if there:
        assert door.where(request) == "z"
    else:
        assert [isinstance(outcome, LookupError) for _, outcome in door.told] == [True]


# Fall-backs of its route -------------------------------------------------------------------


def with_fallback(door: Door, now_s: float, *, is_there: list[bool]) -> QueuedRequest:
    request = door.request(100, now_s)
    request.elsewhere = lambda: is_there[0]
    door.come(request, now_s)
    return request


def test_one_with_a_fall_back_that_can_serve_it_is_not_parked() -> None:
    with pytest.raises(NoBackend):
        with_fallback(starting("a"), 0.0, is_there=[True])


def test_one_that_is_parked_is_told_when_a_fall_back_can_serve_it() -> None:
    door, is_there = starting("a"), [False]
    request = with_fallback(door, 0.0, is_there=is_there)
    door.enter(100, 0.0)  # has none
    door.wake(1.0)
    assert door.outcomes() == []
    is_there[0] = True
    door.wake(2.0)
    assert [(each, type(outcome)) for each, outcome in door.told] == [(request, Elsewhere)]
    assert request.waits  # until it has gone there


# Reload and dry runs ----------------------------------------------------------------


def test_a_reload_that_parks_nothing_any_more_tells_those_that_wait() -> None:
    door = starting("a")
    door.enter(100, 0.0)
    door.wake(1.0)
    door.admission.follow(Rules(enabled=True))
    door.wake(1.1)
    assert door.outcomes() == [NoBackend]


def test_a_wait_without_a_backend_teaches_no_predictions() -> None:
    """Otherwise tenants would be refused for long after a restart of all backends."""
    door = full("a", park_s=600.0)
    door.enter(FILLS, 0.0, **PATIENT)
    set_state(door, State.EJECTED)
    for second in range(1, 300):
        door.wake(float(second))
    set_state(door, State.READY)
    door.wake(300.0)
    door.enter(FILLS, 300.0, name="x")
    assert door.enter(FILLS, 300.0, name="x").predicted_s < 2.0


def test_a_dry_run_says_that_it_would_wait_for_a_backend_or_be_refused() -> None:
    door = starting("a")
    found = door.forecast(100)
    assert (found.fate, found.reason, found.allowed_s) == (Fate.WAIT, "backend", 60.0)
    assert door.admission.waiting == 0
    flood: dict[str, Any] = {"deadline_s": 10.0, "impatient": False, "name": "flood"}
    requests = [door.enter(5_000, **flood) for _ in range(100)]
    assert door.admission.reason(requests[0], 1.0) == (None, "backend")
    assert door.forecast(5_000, **flood).fate is Fate.REFUSE


def test_a_pool_without_any_backend_parks_its_requests() -> None:
    """Service discovery has found none yet, or the fleet was scaled to zero."""
    door = Door("a", park_s=60.0)
    door.fleet = Fleet((Pool("p", (), door.policy),))
    assert door.enter(100).waits


def test_a_request_that_comes_while_a_backend_is_back_for_a_moment_is_parked() -> None:
    door = Door("a", park_s=60.0)
    door.backends[0].state = State.STARTING
    first = door.enter(10, 0.0, deadline_s=30.0, impatient=False)
    door.wake(0.05)
    door.backends[0].state = State.READY
    second = door.request(FILLS, 10.0, deadline_s=30.0, impatient=False)
    assert door.admission.enter(second, 10.0) is None  # before the wake of that turn
    door.backends[0].state = State.STARTING
    door.wake(10.1)
    assert door.told == []
    assert first.waits
    assert second.waits


def test_a_backend_that_serves_others_may_have_a_request_that_it_failed_again_after_a_second() -> (
    None
):
    """Otherwise it waits for a minute beside a healthy backend, and is told that there is none."""
    door = Door("a", park_s=60.0)
    request = door.request(100, tried=door.backends)
    door.come(request, 0.0)
    assert request.waits
    door.enter(100, 0.1, name="other")
    for tenth in range(2, 10):
        assert door.wake(0.1 * tenth) == []
    assert request.waits
    for tenth in range(10, 21):
        door.wake(0.1 * tenth)
    assert door.is_sent(request)


@pytest.mark.parametrize("number", [12, 40, 200])
def test_parked_requests_that_no_pool_serves_hide_none_that_another_pool_serves(
    number: int,
) -> None:
    """A sweep tries twelve, and the next one begins with the same twelve."""
    door = two_pools()
    set_state(door, State.STARTING)
    for each in range(number):
        door.enter(100, 0.0, model=f"model-{each}", name="x")
    last = door.enter(100, 0.1, model="m", name="x")
    second = door.backends[1]
    second.state, second.models = State.READY, {"m": b""}
    for tick in range(100):
        door.wake(1.0 + 0.1 * tick)
    assert door.is_sent(last)
