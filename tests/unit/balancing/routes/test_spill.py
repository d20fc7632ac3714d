"""Which target a request gets where it may spill."""

from math import inf

import pytest

from penstock.balancing.routes.decision import spilled
from tests.unit.balancing.routes.rows import request, table

USUAL_FIRST = {
    "name": "r",
    "to": [{"pool": "chat"}, {"pool": "long", "weight": 0}, {"pool": "next", "weight": 0}],
    "mirror": {"pool": "small", "share": 1},
    "spill": True,
}


def taken(**costs_s: float) -> str:
    decision = table(USUAL_FIRST).decide(request(""))
    assert decision is not None
    found = spilled(decision, lambda target: costs_s[target.pool])
    assert found.target is not None
    assert (found.rule, found.mirrored) == (decision.rule, True)
    return found.target.pool


@pytest.mark.parametrize(
    ("chat", "long", "next_", "wanted"),
    [
        (1.0, 1.0, 1.0, "chat"),
        (0.9, 0.0, 0.0, "chat"),  # less than a second is saved
        (1.1, 0.05, 0.05, "long"),
        (10.0, 6.0, 6.0, "chat"),  # not half of it
        (10.0, 4.9, 6.0, "long"),
        (10.0, 4.9, 4.8, "next"),
        (inf, 100.0, inf, "long"),
        (inf, inf, 3.0, "next"),
        (inf, inf, inf, "chat"),  # its own error is told
        (100.0, inf, inf, "chat"),
        (0.0, 0.0, 0.0, "chat"),
    ],
)
def test_the_usual_target_is_left_for_much_less_only(
    chat: float, long: float, next_: float, wanted: str
) -> None:
    assert taken(chat=chat, long=long, next=next_) == wanted
