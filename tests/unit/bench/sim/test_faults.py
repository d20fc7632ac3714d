"""The switchboard of faults: what hits whom, and how often."""

import pytest

from penstock.bench.sim.faults import FaultKind, Faults

CHAT = "/v1/chat/completions"


def test_a_fault_stays_until_cleared() -> None:
    faults = Faults()
    faults.set("busy")
    assert [len(faults.take_all(CHAT)) for _ in range(3)] == [1, 1, 1]
    faults.clear("busy")
    assert faults.take_all(CHAT) == {}


def test_times_counts_the_requests_that_are_hit() -> None:
    faults = Faults()
    faults.set(FaultKind.BUSY, times=2, path=CHAT)
    assert faults.take_all("/v1/completions") == {}
    assert [len(faults.take_all(CHAT)) for _ in range(3)] == [1, 1, 0]


def test_requests_do_not_use_up_faults_of_connections_or_probes() -> None:
    faults = Faults()
    for kind in ("refuse", "hang_accept", "health_503", "health_hang"):
        faults.set(kind, times=1)
    assert faults.take_all(CHAT) == {}
    assert faults.take(FaultKind.HANG_ACCEPT) is not None
    assert faults.take(FaultKind.HANG_ACCEPT) is None


def test_several_faults_hit_together_and_the_latest_of_a_kind_counts() -> None:
    faults = Faults()
    faults.set("crlf")
    faults.set("multi_token", tokens=3)
    faults.set("multi_token", tokens=4)
    taken = faults.take_all(CHAT)
    assert taken.keys() == {FaultKind.CRLF, FaultKind.MULTI_TOKEN}
    assert taken[FaultKind.MULTI_TOKEN].tokens == 4


def test_every_change_is_told() -> None:
    changes: list[bool] = []
    faults = Faults(lambda: changes.append(faults.active(FaultKind.REFUSE)))
    faults.set("refuse")
    faults.clear()
    assert changes == [True, False]


@pytest.mark.parametrize(("kind", "options"), [("nonsense", {}), ("busy", {"color": 1})])
def test_unknown_faults_and_options_are_errors(kind: str, options: dict[str, int]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Faults().set(kind, **options)
