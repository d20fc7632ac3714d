"""Who is sent at once, who waits, and what becomes of that when backends, pools or rules change."""

from collections.abc import Sequence
from random import Random

import pytest

from penstock.balancing.admission.controller import TICK_S, Rules
from penstock.balancing.admission.dispatch import Told
from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool, UnknownModel
from penstock.balancing.gate import Full, NoBackend
from penstock.balancing.lease import Reason
from tests.unit.balancing.admission.door import FILLS, HIGH_LOW, Door, Priced, full, ready


def test_where_nothing_waits_and_there_is_room_a_request_is_sent_at_once() -> None:
    door = Door("a", "b")
    requests = [door.enter(FILLS), door.enter(FILLS)]
    assert {door.where(request) for request in requests} == {"a", "b"}
    assert door.admission.waiting == 0
    assert not any(request.waits for request in requests)


@pytest.mark.parametrize("how", ["first_token", "end", "fail", "complete"])
def test_one_that_waits_is_sent_in_the_wake_after_there_is_room(how: str) -> None:
    door = full("a")
    before = next(iter(door.leases.values()))
    request = door.enter(100, 0.01)
    assert request.waits
    assert door.wake(0.02) == []
    changes = door.changes
    if how == "complete":
        before.first_token(0.03)
    getattr(before, how)(0.03)
    assert door.changes > changes
    assert door.wake(0.03) == [request]
    assert door.admission.waiting == 0
    assert door.told == [(request, door.leases[request])]


def test_a_plain_answer_makes_room_by_the_clock_alone() -> None:
    door = Door("a")
    door.enter(FILLS, stream=False)
    request = door.enter(FILLS, 0.0)
    now_s = 0.0
    while not door.wake(now_s):
        now_s += TICK_S
        assert now_s < 0.4
    assert now_s >= 0.1
    assert door.is_sent(request)


def test_a_wake_tells_nobody_itself() -> None:
    door = full("a")
    request = door.enter(100)
    door.open_up(0.1)
    outcomes: list[Told] = []
    door.admission.wake(0.1, outcomes)
    assert [each for each, _ in outcomes] == [request]
    assert door.told == []


def test_requests_that_need_no_engine_do_not_wait() -> None:
    door = full("a")
    assert door.enter(FILLS).waits
    for _ in range(5):
        assert door.is_sent(door.enter(200, engine=False))


@pytest.mark.parametrize("of_pool", [True, False])
def test_if_admission_is_off_each_request_is_sent_at_once(*, of_pool: bool) -> None:
    door = Door("a", enabled=of_pool)
    door.fleet = Fleet((Pool("p", door.backends, door.policy, admission=not of_pool),))
    for _ in range(20):
        assert door.is_sent(door.enter(FILLS))
    assert door.wake(1.0) == []
    assert door.admission.pools == {}


def test_a_request_for_a_stored_response_waits_for_the_backend_that_holds_it() -> None:
    door = full("a", "b")
    door.gate.owners.put("resp_1", "b", 0.0, "t")
    request = door.enter(100, 0.01, response_id="resp_1", tenant="t")
    assert request.waits
    door.open_up(0.05, 0)
    assert door.wake(0.05) == []
    door.open_up(0.3, 1)
    assert door.wake(0.3) == [request]
    lease = door.leases[request]
    assert (lease.backend.name, lease.bound, lease.reason) == ("b", True, Reason.AFFINITY)


def test_the_numbers_of_a_class_are_told() -> None:
    door = full("a", **HIGH_LOW)
    for tokens, name, rank in ((100, "x", 0), (20, "x", 1), (50, "y", 1)):
        door.enter(tokens, name=name, rank=rank)
    assert [door.admission.queued(rank) for rank in (0, 1, 2)] == [(1, 100), (2, 70), (0, 0)]
    assert door.admission.waiting == 3


# Limits of requests ------------------------------------------------------------------------


def limited(
    *names: str, each: int | None = None, together: int | None = None, enabled: bool = True
) -> Door:
    """`each`: how many requests a backend may have. `together`: how many the pool may have."""
    door = Door(*names, max_requests=together, enabled=enabled)
    for backend in door.backends:
        backend.max_requests = each
    return door


@pytest.mark.parametrize(("each", "together"), [(2, None), (None, 4), (3, 4)])
@pytest.mark.parametrize("generates", [True, False])
def test_what_is_over_a_limit_waits_until_another_request_has_ended(
    each: int | None, together: int | None, *, generates: bool
) -> None:
    door = limited("a", "b", each=each, together=together)
    requests = [door.enter(10, 0.0, generates=generates) for _ in range(6)]
    for request in requests[:4]:
        door.first(request, 0.1)
    assert door.wake(0.2) == []
    reasons = {door.admission.reason(request, 0.2)[1] for request in requests[4:]}
    assert reasons == {WaitReason.REQUESTS}
    door.finish(requests[0], 1.0)
    assert len(door.wake(1.0)) == 1
    assert sum(backend.own.requests for backend in door.backends) == 4


@pytest.mark.parametrize(("each", "together"), [(1, None), (None, 2)])
def test_without_admission_what_is_over_a_limit_is_refused(
    each: int | None, together: int | None
) -> None:
    door = limited("a", "b", each=each, together=together, enabled=False)
    for _ in range(2):
        door.enter(10, 0.0)
    with pytest.raises(Full):
        door.enter(10, 0.0)


def test_a_reload_changes_a_limit() -> None:
    door = limited("a", together=1)
    door.enter(10, 0.0)
    request = door.enter(10, 0.0)
    assert request.waits
    door.fleet = Fleet((Pool("p", door.backends, door.policy),))
    door.admission.follow(Rules(enabled=True))
    assert door.wake(0.1) == [request]


# Backends and pools that change ------------------------------------------------------------


def test_those_that_wait_are_told_when_no_backend_can_serve_any_more() -> None:
    door = full("a")
    requests = [door.enter(100, 0.01), door.enter(100, 0.02)]
    door.backends[0].state = State.EJECTED
    assert door.wake(0.1) == []
    assert [request for request, _ in door.told] == requests
    assert door.outcomes() == [NoBackend] * 2
    assert door.admission.waiting == 0


def test_those_whose_model_no_backend_serves_any_more_are_told_and_others_wait_on() -> None:
    door = Door("a", "b")
    door.backends[0].models, door.backends[1].models = {"m": b""}, {"n": b""}
    for model in "mn":
        door.enter(FILLS, model=model)
    for number in range(40):
        door.enter(FILLS, 0.01, model="m", name=f"{number}")
    go = [door.enter(FILLS, 0.02, model="n", name=f"{number}") for number in range(40)]
    door.backends[1].state = State.EJECTED
    for tenth in range(1, 10):
        door.wake(0.1 * tenth)
    assert {each for each, outcome in door.told if isinstance(outcome, NoBackend)} == set(go)


def test_a_backend_that_is_new_gets_what_waits() -> None:
    door = Door("a", "b")
    door.backends[1].state = State.STARTING
    door.enter(FILLS)
    request = door.enter(FILLS)
    assert request.waits
    door.backends[1].state = State.READY
    assert door.wake(0.05) == [request]
    assert door.where(request) == "b"


@pytest.mark.parametrize("models", [None, {"other": b""}])
def test_what_waits_for_a_pool_that_is_gone_goes_to_another_that_serves_it_or_is_told(
    models: dict[str, bytes] | None,
) -> None:
    door, other = full("a"), ready("z")
    request = door.enter(100, 0.01, model="m")
    other.models = models or other.models
    door.fleet = Fleet((Pool("q", (other,), door.policy),))
    door.admission.follow(Rules(enabled=True))
    if models is None:
        assert door.wake(0.1) == [request]
        assert door.leases[request].backend is other
    else:
        door.wake(0.1)
        assert [(each, type(outcome)) for each, outcome in door.told] == [(request, UnknownModel)]


def test_a_pool_that_is_gone_is_forgotten_when_nothing_of_it_runs() -> None:
    door = full("a")
    door.fleet = Fleet(())
    door.admission.follow(Rules(enabled=True))
    assert "p" in door.admission.pools
    for lease in door.leases.values():
        lease.end(0.1)
    door.admission.follow(Rules(enabled=True))
    assert door.admission.pools == {}
    assert door.backends[0].occupancy is None


def test_a_backend_that_a_reload_has_removed_keeps_nobody_waiting() -> None:
    """It still works on what it has, and looks ready."""
    door = full("a", "b")
    request = door.enter(FILLS, 0.05)
    stays = door.backends[1:]
    door.fleet = Fleet((Pool("p", stays, door.policy),))
    door.admission.follow(Rules(enabled=True))
    stays[0].state = State.EJECTED
    door.wake(0.06)
    assert [(each, type(outcome)) for each, outcome in door.told] == [(request, NoBackend)]


# Rules that change -------------------------------------------------------------------------


def test_new_rules_may_have_more_classes() -> None:
    door = full("a")
    door.admission.follow(Rules(enabled=True, shares=(0.0, 0.1), classes=("", "low")))
    low, high = door.enter(FILLS, 0.01, rank=1), door.enter(FILLS, 0.02)
    door.open_up(0.1)
    assert door.wake(0.1) == [high]
    door.open_up(0.2)
    assert door.wake(0.2) == [low]


def test_a_reload_with_fewer_classes_finds_each_request_its_own_by_name() -> None:
    """Those that an engine works on still count, too."""
    door = Door("a", shares=(0.0, 0.0, 0.1), classes=("high", "middle", "low"))
    under_way = door.enter(FILLS, rank=2)
    requests = [door.enter(FILLS, 0.01, rank=rank) for rank in (0, 1, 2)]
    door.admission.follow(Rules(enabled=True, shares=(0.0, 0.1), classes=("middle", "low")))
    assert [request.rank for request in requests] == [1, 0, 1]
    late = door.enter(FILLS, 0.02, rank=2)  # its class was read before the reload
    assert late.rank == 1
    for tenth in range(1, 6):
        door.open_up(0.1 * tenth)
        door.wake(0.1 * tenth)
    assert len(door.leases) == 5
    for lease in door.leases.values():
        lease.end(1.0)
    assert door.leases[under_way].backend.own.idle
    assert not door.pool.capacities[door.backends[0]].charges


def test_if_new_rules_switch_admission_off_what_waits_is_sent() -> None:
    door = full("a")
    requests = [door.enter(FILLS, 0.01) for _ in range(200)]
    door.admission.follow(Rules(enabled=False))
    sent = []
    for _ in range(10):
        sent += door.wake(0.02)
    assert sent == requests


# Faults ------------------------------------------------------------------------------------


class Faulty(Priced):
    """It fails for one prompt length."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        if ask.prompt_tokens == 777:
            raise RuntimeError
        return super().choose(fit, ask, now_s, rng)


def test_a_fault_of_one_request_loses_no_other() -> None:
    door = Door("a", "b")
    door.fleet = Fleet((Pool("p", door.backends, Faulty()),))
    for _ in range(2):
        door.enter(FILLS, name="before")
    first = door.enter(FILLS, 0.01, name="x")
    bad = door.request(777, 0.02, name="y")
    with pytest.raises(RuntimeError):
        door.admission.enter(bad, 0.02)
    bad.ask.prompt_tokens = 778
    assert door.admission.enter(bad, 0.02) is None
    bad.ask.prompt_tokens = 777
    last = door.enter(FILLS, 0.03, name="z")
    for place in (0, 1):
        door.open_up(0.1, place)
    door.wake(0.1)
    assert [type(outcome) for each, outcome in door.told if each is bad] == [RuntimeError]
    assert door.is_sent(first)
    assert door.is_sent(last)
    assert door.admission.waiting == 0
