"""The scenarios of `bench verdict`: test data that can be read, and where they are missing."""

from pathlib import Path

import pytest

from penstock.bench import verdict
from penstock.bench.report import BenchError
from penstock.bench.verdict import ONSET_S, scenarios


@pytest.mark.parametrize(("name", "count"), [("known", 19), ("opened", 109), ("unseen", 48)])
def test_every_scenario_is_whole(name: str, count: int) -> None:
    found = scenarios(name)
    assert len({each.name for each in found}) == count
    for each in found:
        assert each.truth
        assert {fault.server for fault in each.faults} <= set(range(len(each.servers)))
        assert all(fault.at_s >= ONSET_S for fault in each.faults)


def test_a_server_may_stand_for_several() -> None:
    first = scenarios("known")[0]
    assert (first.name, len(first.servers), first.traffic[0].prompt_tokens) == (
        "fine at 30 %",
        2,
        (1_000, 3_000),
    )


def test_a_wheel_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verdict, "SCENARIOS", tmp_path)
    with pytest.raises(BenchError, match=r"known\.yaml is only in a checkout"):
        scenarios("known")
