"""A dry run says what would become of a request, and leaves nothing behind."""

from typing import Any

import pytest

from penstock.balancing.admission.dry_run import Ahead, Fate, Forecast
from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.admission.ttft import SHARE
from penstock.balancing.backend import State
from penstock.balancing.gate import NoBackend, OwnerAway
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.failures import leave_alone
from tests.unit.balancing.admission.door import FILLS, HIGH_LOW, Door, full
from tests.unit.balancing.admission.walk import Walk

# What it says ------------------------------------------------------------------------------


def test_where_there_is_room_a_request_would_be_sent_at_once() -> None:
    found = Door("a").forecast(FILLS)
    assert (found.fate, found.reason, found.ahead) == (Fate.AT_ONCE, None, [])
    assert found.backend is not None
    assert found.backend.name == "a"


def test_if_admission_is_off_all_would_be_sent_at_once() -> None:
    door = Door("a", enabled=False)
    for _ in range(5):
        door.enter(FILLS)
    assert door.forecast(FILLS).fate is Fate.AT_ONCE


def test_a_backend_that_costs_little_more_would_be_taken_at_once() -> None:
    door = Door("a", "b", prices={"a": 1.0, "b": 1.05})
    door.enter(FILLS)
    found = door.forecast(FILLS)
    assert (found.fate, found.backend) == (Fate.AT_ONCE, door.backends[1])
    assert door.where(door.enter(FILLS)) == "b"


def test_it_says_what_a_request_would_wait_for() -> None:
    door = Door("a", kv_tokens=10_000)
    door.first(door.enter(8_000, name="other"), 0.1)
    assert door.forecast(1_000, 0.2).reason is None
    assert door.forecast(4_000, 0.2).reason is WaitReason.KV_CACHE
    door.enter(3_000, 0.2)
    found = door.forecast(10, 0.2, name="x")
    assert (found.fate, found.reason) == (Fate.WAIT, WaitReason.TURN)


def test_one_that_waits_says_the_same() -> None:
    door = full("a")
    request = door.enter(100, 0.01)
    assert door.admission.reason(request, 0.01) == (door.backends[0], WaitReason.PROMPTS)
    door.backends[0].state = State.EJECTED
    assert door.admission.reason(request, 0.2) == (None, WaitReason.BACKEND)
    assert request.waits


def test_one_behind_a_client_that_is_refused_for_load_is_promised_no_time() -> None:
    door = Door("a")
    leave_alone(door.backends[0], "first", 0.0, 2.0)
    door.enter(100, 0.1, client="first")
    found = door.forecast(100, 1.0, client="other", deadline_s=30.0)
    assert (found.fate, found.reason) == (Fate.WAIT, WaitReason.BUSY)
    assert found.allowed_s == 30.0  # it waits until a backend takes it, or until its deadline


def test_where_no_backend_can_serve_there_is_nothing_to_wait_for() -> None:
    door = full("a")
    door.backends[0].state = State.EJECTED
    with pytest.raises(NoBackend):
        door.forecast(100)


def test_what_refers_to_a_stored_response_waits_for_the_backend_that_holds_it() -> None:
    door = full("a", "b")
    door.gate.owners.put("resp_1", "b", 0.0, "t")
    fields: dict[str, Any] = {"response_id": "resp_1", "tenant": "t"}
    found = door.forecast(100, 0.01, **fields)
    assert (found.backend, found.reason) == (door.backends[1], WaitReason.PROMPTS)
    door.backends[1].state = State.EJECTED
    with pytest.raises(OwnerAway):
        door.forecast(100, 0.01, **fields)


def test_what_goes_before_it_is_counted_by_class() -> None:
    door = full("a", **HIGH_LOW)
    for name in ("x", "x", "y"):
        door.enter(1_000, 0.01, name=name)
    for name in ("mine", "mine", "other"):
        door.enter(500, 0.01, rank=1, name=name)
    high, low = door.forecast(2_000, 0.01, rank=1, name="mine").ahead
    assert high == Ahead(0, 3, 3_000, 2)
    assert low == Ahead(1, 3, 1_500, 2)
    assert door.forecast(100, 0.01, name="new").ahead == [Ahead(0, 2, 200, 2)]  # a part of each


def test_of_a_tenant_that_is_passed_midway_a_part_goes_before_it() -> None:
    door = full("a")
    for _ in range(10):
        door.enter(1_000, 0.01, name="many")
    (part,) = door.forecast(2_500, 0.01, name="new").ahead
    assert part == Ahead(0, 3, 2_500, 1)


def test_the_time_is_the_one_that_it_would_be_told() -> None:
    door = full("a")
    for number in range(5):
        found = door.forecast(FILLS, 0.01, deadline_s=100.0, name="mine")
        request = door.enter(FILLS, 0.01, deadline_s=100.0, name="mine")
        assert found.predicted_s == request.predicted_s > 0.2 * number
        assert found.allowed_s == SHARE * 100.0


def test_it_is_refused_as_it_would_be() -> None:
    door = full("a")
    while door.forecast(FILLS, 0.01, deadline_s=5.0).fate is Fate.WAIT:
        assert door.enter(FILLS, 0.01, deadline_s=5.0).waits
    found = door.forecast(FILLS, 0.01, deadline_s=5.0)
    assert found.fate is Fate.REFUSE
    assert found.refused is not None
    refused = door.refused[door.enter(FILLS, 0.01, deadline_s=5.0)]
    assert found.predicted_s == found.refused.predicted_s == refused.predicted_s
    least_s = found.refused.retry_after_s
    assert least_s <= refused.retry_after_s <= 2.0 * least_s
    assert sum(each.requests for each in found.ahead) == door.admission.waiting


# What others ask of it ---------------------------------------------------------------------


def test_a_pool_takes_a_request_now_if_nothing_waits_and_its_choice_has_room() -> None:
    door = Door("a")
    request = door.request(FILLS, dry=True)
    look = door.gate.look(request.ask, 0.0)
    assert door.admission.takes_now(request, look, 0.0)
    door.enter(FILLS)
    assert not door.admission.takes_now(request, look, 0.0)
    door.enter(FILLS)
    door.open_up(0.1)
    assert not door.admission.takes_now(request, look, 0.1)  # something waits


def test_whether_one_that_has_waited_elsewhere_would_be_refused() -> None:
    door = full("a")
    request = door.request(FILLS, 0.0, deadline_s=5.0)
    assert not door.admission.would_refuse(request, request.ask, 0.0, 0.01)
    assert door.admission.would_refuse(request, request.ask, -4.9, 0.01)
    door.backends[0].state = State.EJECTED  # it is told why as soon as it goes there
    assert not door.admission.would_refuse(request, request.ask, -4.9, 0.01)


# Random walks ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_it_foresees_what_happens(seed: int) -> None:
    foreseen: list[tuple[Forecast, int]] = []

    def ask(door: Door, fields: dict[str, Any], now_s: float) -> None:
        foreseen.append((door.forecast(now_s=now_s, **fields), door.admission.waiting))

    fates = set()
    walk = Walk(seed, ask)
    for _ in range(150):
        walk.step()
        (found, waiting), told = foreseen[-1], walk.entered
        fates.add(found.fate)
        if isinstance(told, Lease):
            assert (found.fate, found.backend) == (Fate.AT_ONCE, told.backend)
        elif found.fate is Fate.AT_ONCE:  # at another backend, in the wake of the same turn
            assert not waiting
        elif found.fate is Fate.WAIT:
            assert told is None
            assert walk.predicted_s == pytest.approx(found.predicted_s, rel=0.05)
        elif told is not None:  # else it is refused in the wake of the same turn
            assert found.refused is not None
            least_s = found.refused.retry_after_s
            assert 0.95 * least_s <= told.retry_after_s <= 1.05 * 2.0 * least_s
    assert fates == set(Fate)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_that_follows_is_changed_by_it(seed: int) -> None:
    def ask(door: Door, fields: dict[str, Any], now_s: float) -> None:
        for name in ("a", "b", "c", "nobody", ""):
            for rank in range(2):
                door.forecast(now_s=now_s, **fields | {"name": name, "rank": rank})
        for pool in door.admission.pools.values():
            for request in pool.queue.oldest(20):
                door.admission.reason(request, now_s)

    with_it, without = Walk(seed, ask), Walk(seed)
    ask(with_it.door, {"tokens": FILLS}, 0.0)  # also where nothing is known of the pool yet
    for _ in range(150):
        with_it.step()
        without.step()
    assert with_it.told == without.told
    assert set(with_it.door.pool.queue.tenants) == {"a", "b", "c"}
