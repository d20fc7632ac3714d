"""Who sends what in a cell of the panel."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from penstock.bench.overload.calls import PATIENT, Closed, Open, Recorded, Steady
from penstock.bench.overload.mixes import MIXES
from penstock.bench.report import BenchError
from penstock.bench.sim.profiles import GPUS

MIX = MIXES["decode"]


def test_calls_come_at_the_load_and_in_their_spans() -> None:
    calls = Open(MIX, 0.5, spans=((10.0, 20.0), (40.0, 60.0))).calls(50.0, Random(1))
    assert len(calls) == pytest.approx(0.5 * MIX.capacity_per_s * 20.0, rel=0.15)
    assert all(10.0 <= call.at_s < 20.0 or 40.0 <= call.at_s < 50.0 for call in calls)


def test_tenants_send_in_turn() -> None:
    calls = Open(MIX, 0.5, replace(PATIENT, tenant="of", tenants=3)).calls(20.0, Random(1))
    assert {call.tenant for call in calls} == {"of-0", "of-1", "of-2"}


def test_each_client_of_a_closed_loop_begins() -> None:
    calls = Closed(MIX, 5, think_s=1.0).calls(60.0, Random(1))
    assert len({call.at_s for call in calls}) == 5
    assert all(call.loop is not None and call.at_s <= 3.0 for call in calls)


def test_the_same_call_again_and_again() -> None:
    calls = Steady(20, 1, 2.5, from_s=5.0).calls(12.0, Random(1))
    assert [(call.at_s, call.prompt_tokens) for call in calls] == [(5.0, 20), (7.5, 20)]


def test_a_trace_that_is_not_there_is_told(tmp_path: Path) -> None:
    source = Recorded(tmp_path / "none.gz", 0.5, GPUS["70b-4xh100"], 8)
    with pytest.raises(BenchError, match=r"none\.gz"):
        source.calls(10.0, Random(1))
