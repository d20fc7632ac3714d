"""How long starts take: only of servers that were seen to start."""

import pytest

from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.starts import ColdStart

STARTING = [
    # One that is ready at first sight started before.
    ("1 ready, 9 served", None),
    # From the first sign to the first token.
    ("1 unreachable, 10 timeout, 20 status_503, 40 ready, 55 served, 99 served", 45.0),
    ("3 status_503, 4 ready, 5 served", 2.0),
]
RUNNING = [
    # A hung server has not started again.
    ("10 timeout, 12 ready, 14 served", None),
    # What is served at 2 is of a stream that began before.
    ("0 gone, 1 unreachable, 2 served, 10 timeout, 12 ready, 14 served", 4.0),
]


@pytest.mark.parametrize(
    ("told", "last_s", "starting"),
    [*[(*each, True) for each in STARTING], *[(*each, False) for each in RUNNING]],
)
def test_how_long_a_start_took(told: str, last_s: float | None, *, starting: bool) -> None:
    start = ColdStart()
    for at_s, what in (each.split() for each in told.split(", ")):
        if what == "served":
            start.served(float(at_s))
        elif what == "gone":
            start.gone()
        else:
            start.probed("" if what == "ready" else what, float(at_s), starting=starting)
        assert start.last_s is None or what == "served"
    assert start.last_s == last_s


def test_counters_that_begin_anew_show_a_start() -> None:
    backend = Backend("a", "")
    backend.take(EngineReport(at_s=1.0, generated_tokens=50))
    backend.take(EngineReport(at_s=3.0, generated_tokens=0))
    backend.cold_start.served(7.0)
    assert backend.cold_start.last_s == 4.0
