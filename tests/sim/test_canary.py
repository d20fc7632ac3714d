"""Canaries with records of the simulated engine: some runs of `penstock bench canary`."""

from functools import cache

import pytest

from penstock.balancing.canary.steps import Stage
from penstock.bench.canary.records import Seen, record
from penstock.bench.canary.world import CASES, Case, World
from penstock.conf.canary import CanarySettings

SETTINGS = CanarySettings(pool="next", steps=(10.0, 50.0, 100.0), every_s=60.0)
LOADS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@cache
def records() -> dict[float, list[Seen]]:
    return {load: record(load, 1) for load in LOADS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_worse_version_goes_back_and_an_equal_one_is_promoted(case: Case) -> None:
    outcome = World(case, SETTINGS, records(), seed=1).run()
    assert outcome.stage is (Stage.ROLLED_BACK if case.worse else Stage.PROMOTED)
    if "errors" in case.name and case.hostile is None:
        assert outcome.to_canary <= 1_500
