"""What failed attempts say, and of whom."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.balancing.verdict.cause import Kind
from penstock.balancing.verdict.facts import PoolFacts
from penstock.balancing.verdict.words import words
from tests.unit.balancing.verdict.pools import backend, found, found_over


def test_what_all_backends_fail_at_blames_none_of_them() -> None:
    """One is out, as penstock takes out so many at most. The other fails as well."""
    out = backend("b", state="ejected", reason="unreachable", can_serve=False)
    for backends in ((backend("a"), out), (backend("a"), backend("b"))):
        finding = found(*backends, per_s={"failures_total": 4})
        assert (finding.detail, finding.backend) == ("everywhere", "")
        assert "at each of the 2 backends" in words(finding)[0]


@pytest.mark.parametrize(
    ("failed", "kind"), [("aaaa", Kind.CLIENT), ("abcd", Kind.FAILING), ("aab ", Kind.FAILING)]
)
def test_the_last_failures_at_several_backends_tell_how_many_clients_fail(
    failed: str, kind: Kind
) -> None:
    """Each of these backends has failed one client."""
    backends = [backend(str(n), failed_most=who.strip()) for n, who in enumerate(failed)]
    per_s = {"failures_total": 4, "requests_apart_total": 2.0}
    assert found(*backends, per_s=per_s).kind is kind


def test_where_only_one_of_two_fails_it_is_named() -> None:
    moments = []
    for at in range(11):
        both = [
            replace(backend(name), requests_total=5 * at, failures_total=failed)
            for name, failed in (("a", 0), ("b", 5 * at))
        ]
        moments.append(PoolFacts(float(at), tuple(both)))
    finding = found_over(moments)
    assert (finding.detail, finding.backend) == ("requests", "b")


def test_where_nobody_is_served_no_client_is_to_blame() -> None:
    """A busy client and a rare one."""
    per_s = {"failures_total": 5, "failures_apart_total": 0.2, "requests_apart_total": 0.5}
    assert found(backend(), per_s=per_s).kind is Kind.FAILING


def test_one_that_fails_most_of_the_few_that_it_gets_is_failing() -> None:
    """penstock avoids it, so that of all requests only a fiftieth fails."""
    totals = ("requests", "failures", "failures_apart", "requests_apart")
    moments = []
    for second in range(60):
        good = replace(backend("a"), requests_total=9 * second)
        counts: dict[str, Any] = {f"{name}_total": second // 5 for name in totals}
        moments.append(PoolFacts(float(second), (good, replace(backend("b"), **counts))))
    assert found_over(moments[:21]).kind is Kind.FINE
    finding = found_over(moments)
    assert (finding.kind, finding.detail, finding.backend) == (Kind.FAILING, "backend", "b")


def test_rare_failures_of_others_beside_a_flood_of_one_client_are_not_common() -> None:
    per_s = {"failures_total": 4, "failures_apart_total": 0.12, "requests_apart_total": 3.0}
    backends = [backend("a"), backend("b")]
    assert found(*backends, per_s=per_s | {"requests_total": 8}).kind is Kind.CLIENT


def test_a_part_of_one_clients_requests_that_fails_is_told() -> None:
    per_s = {"failures_total": 1, "requests_total": 10, "requests_apart_total": 2.0}
    finding = found(backend(), per_s=per_s)
    assert (finding.kind, finding.detail) == (Kind.CLIENT, "fails")
