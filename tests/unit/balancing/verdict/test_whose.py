"""Which tenant is named beside a cause."""

from typing import Any

import pytest

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.verdict.cause import Kind
from penstock.balancing.verdict.words import words
from tests.unit.balancing.verdict.pools import PREFILLS, backend, found, queue

FLOOD: dict[str, Any] = {
    "waiting_by_tenant": {"flood": 9, "app": 1},
    "served_by_tenant": {"flood": 5, "app": 2},
    "given_by_tenant": {"flood": 900.0, "app": 100.0},
}


@pytest.mark.parametrize(
    ("kind", "lack", "facts", "per_s"),
    [
        (Kind.COMPUTE, WaitReason.PROMPTS, {}, PREFILLS),
        (Kind.MEMORY, WaitReason.KV_CACHE, {"kv_usage": 0.97}, PREFILLS),
        (Kind.SCHEDULER, WaitReason.SEQUENCES, {}, {}),
    ],
)
def test_a_tenant_that_has_all_that_waits_is_named_beside_what_it_used_up(
    kind: Kind, lack: WaitReason, facts: dict[str, Any], per_s: dict[str, float]
) -> None:
    finding = found(backend(**facts), per_s=per_s, **FLOOD, **queue(lack))
    assert (finding.kind, finding.tenant) == (kind, "flood")
    sentence, to_do = words(finding)
    assert "tenant flood" in sentence
    assert "flood" in to_do[0]


def test_a_tenant_is_named_also_in_moments_without_requests_of_others() -> None:
    facts = FLOOD | {"waiting_by_tenant": {"flood": 10}, "served_by_tenant": {"flood": 5}}
    finding = found(backend(), per_s=PREFILLS, **facts, **queue(WaitReason.PROMPTS))
    assert finding.tenant == "flood"


@pytest.mark.parametrize(
    "facts",
    [
        FLOOD
        | {"waiting_by_tenant": {"flood": 6, "app": 4}}
        | {"given_by_tenant": {"flood": 40.0, "app": 30.0, "web": 30.0}}
        | {"served_by_tenant": {"flood": 5, "app": 2, "web": 1}},
        FLOOD
        | {"waiting_by_tenant": {"flood": 10}, "served_by_tenant": {"flood": 5}}
        | {"given_by_tenant": {"flood": 900.0}},
        {"waiting_by_tenant": {"": 10}, "served_by_tenant": {"": 5, "app": 1}},
    ],
    ids=["others wait, too", "no other is served", "no tenant"],
)
def test_no_tenant_is_named(facts: dict[str, Any]) -> None:
    assert found(backend(), per_s=PREFILLS, **facts, **queue(WaitReason.PROMPTS)).tenant == ""


@pytest.mark.parametrize("lack", [WaitReason.REQUESTS, WaitReason.CHOICES])
def test_who_takes_all_places_of_a_limit_of_ours_is_named(lack: WaitReason) -> None:
    finding = found(backend(), **FLOOD, **queue(lack))
    assert (finding.kind, finding.tenant) == (Kind.WAITING, "flood")


def test_who_holds_the_places_is_named_and_not_who_waits_for_one() -> None:
    """Slow readers of one tenant hold 11 of 12 places, and take next to no tokens."""
    facts: dict[str, Any] = {
        "waiting_by_tenant": {"victim": 10},
        "served_by_tenant": {"hog": 11, "victim": 1},
        "given_by_tenant": {"hog": 150.0, "victim": 850.0},
    }
    finding = found(backend(), **facts, **queue(WaitReason.REQUESTS))
    assert (finding.kind, finding.tenant, finding.role) == (Kind.WAITING, "hog", "holds")
    sentence, to_do = words(finding)
    assert sentence.endswith("Most of the requests under way are of tenant hog.")
    assert "hog" in to_do[0]


def test_bystanders_do_not_hide_who_holds_the_places() -> None:
    """Ten tenants were served lately, and hold none."""
    bystanders = {f"tenant-{number}": 500.0 for number in range(10)}
    facts: dict[str, Any] = {
        "waiting_by_tenant": {"victim": 10},
        "served_by_tenant": {"hog": 11, "victim": 1},
        "given_by_tenant": {"hog": 150.0, "victim": 850.0} | bystanders,
    }
    assert found(backend(), **facts, **queue(WaitReason.REQUESTS)).tenant == "hog"


def test_who_has_the_most_elsewhere_is_not_named_for_a_hot_backend() -> None:
    facts: dict[str, Any] = {
        "waiting_by_tenant": {"pinned": 5, "other": 1},
        "served_by_tenant": {"pinned": 10, "big": 30},
        "given_by_tenant": {"pinned": 200.0, "big": 800.0},
    }
    hot = backend("a", backlog_s=3.0, wanted=9)
    finding = found(hot, backend("b"), **facts, **queue(WaitReason.PROMPTS))
    assert (finding.kind, finding.tenant) == (Kind.UNEVEN, "")


def test_who_waits_for_one_hot_backend_is_named() -> None:
    hot = backend("a", backlog_s=3.0, wanted=9)
    finding = found(hot, backend("b"), **FLOOD, **queue(WaitReason.PROMPTS))
    assert (finding.kind, finding.backend, finding.tenant) == (Kind.UNEVEN, "a", "flood")


@pytest.mark.parametrize(("most", "named"), [(520.0, ""), (640.0, "hog")])
def test_who_takes_hardly_more_than_the_next_one_is_not_named(most: float, named: str) -> None:
    facts: dict[str, Any] = {
        "waiting_by_tenant": {"hog": 5, "victim": 5},
        "served_by_tenant": {"hog": 4, "victim": 4},
        "given_by_tenant": {"hog": most, "victim": 1_000.0 - most},
    }
    assert found(backend(kv_usage=0.97), **facts, **queue(WaitReason.KV_CACHE)).tenant == named


def test_who_holds_the_most_is_named_and_not_who_waits_for_it() -> None:
    """Four long streams hold the cache, and another tenant waits."""
    facts: dict[str, Any] = {
        "waiting_by_tenant": {"victim": 10},
        "served_by_tenant": {"hog": 4, "victim": 1},
        "given_by_tenant": {"hog": 850.0, "victim": 150.0},
    }
    finding = found(backend(kv_usage=0.97), **facts, **queue(WaitReason.KV_CACHE))
    assert (finding.kind, finding.tenant) == (Kind.MEMORY, "hog")
    sentence, to_do = words(finding)
    assert "for tenant hog" in sentence
    assert "victim" not in sentence
    assert "hog" in to_do[0]


@pytest.mark.parametrize(("slow", "named"), [({"radio": 8}, "radio"), ({"radio": 4, "web": 4}, "")])
def test_whose_clients_do_not_read(slow: dict[str, int], named: str) -> None:
    finding = found(backend(), clients=10, slow_clients=8, slow_by_tenant=slow)
    assert (finding.kind, finding.tenant) == (Kind.CLIENT, named)
    assert ("tenant radio" in words(finding)[0]) is bool(named)
