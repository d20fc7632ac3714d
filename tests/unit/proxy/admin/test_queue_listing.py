"""What the admin port tells of requests that wait: who is next, and each tenant's share."""

import pytest

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.admission.tenant_queue import LATELY_TAU_S, TenantQueue
from penstock.proxy.admin.listings import HEADS_MAX, _heads
from tests.unit.balancing.admission.door import FILLS, full


def test_each_class_that_waits_has_its_first_one_however_many_wait_above() -> None:
    door = full("a", shares=(0.0, 0.0, 0.0), classes=("high", "middle", "low"))
    for rank, count in ((0, 50), (2, 3)):
        for number in range(count):
            door.enter(FILLS, 0.1, rank=rank, name=f"{number}")
    heads = _heads(door.pool)
    assert [request.rank for request in heads] == [0] * (HEADS_MAX - 1) + [2]
    assert {door.admission.reason(request, 0.1)[1] for request in heads} == {WaitReason.PROMPTS}


def test_where_nothing_waits_nobody_is_next() -> None:
    assert _heads(full("a").pool) == []


def test_what_a_tenant_was_given_is_forgotten_in_minutes() -> None:
    tenant = TenantQueue("f", 1, weight=2.0)
    tenant.charge(1_000.0, 10.0)
    tenant.charge(-200.0, 10.0)
    assert tenant.given.of(10.0) == 800.0
    assert tenant.given.of(9.0) == 800.0  # a clock that goes back
    assert tenant.given.of(10.0 + LATELY_TAU_S) == pytest.approx(800.0 / 2.718, 0.01)
    assert tenant.served == 400.0
