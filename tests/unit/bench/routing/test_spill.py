"""The bench of spilling: the same requests for all rules, and what two pools that spill come to."""

import pytest

from penstock.bench.routing.spill import Cell


def cell(rule: str) -> Cell:
    return Cell(0.6, 6, rule, 1, 0.08, 8, "8b-1xh100", 240.0, admission=False)


@pytest.mark.once
def test_two_pools_that_spill_are_better_for_interactive_requests_than_one_fleet() -> None:
    one, split, spill = [cell(rule).figures() for rule in ("one", "split", "spill")]
    assert one["spilled"] == split["spilled"] == 0.0
    assert split["chat_p99_s"] < one["chat_p99_s"]
    assert spill["chat_p99_s"] <= 0.5 * one["chat_p99_s"]
    assert spill["goodput"] >= one["goodput"]
    assert cell("spill").figures() == spill
