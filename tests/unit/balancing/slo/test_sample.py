"""What counts: whose fault an end is decides."""

import pytest

from penstock.balancing.slo.objective import goals_of
from penstock.balancing.slo.sample import Outcome, Sample, outcome_of
from tests.unit.balancing.slo.levels import ended, served, settings

SERVED, FAILED, SHED, LEFT, FAULT = (
    Outcome.SERVED, Outcome.FAILED, Outcome.SHED, Outcome.LEFT, Outcome.FAULT,
)  # fmt: skip


@pytest.mark.parametrize(
    ("status", "code", "reason", "whole", "outcome"),
    [
        (200, None, None, True, SERVED),
        (200, None, None, False, LEFT),  # the client left in the midst of its answer
        (499, None, None, False, LEFT),
        (200, "stream_broken", "reset", False, FAILED),
        (200, "stream_broken", "total", False, FAILED),  # our limit
        (200, "stream_broken", "client_timeout", False, LEFT),  # the client's
        (408, "request_timeout", "client_timeout", True, LEFT),
        (429, "deadline", None, True, LEFT),  # the client allows too little time
        (502, "backend_error", "reset", True, FAILED),
        (504, "backend_timeout", "timeout", True, FAILED),
        (503, "no_backend", None, True, FAILED),
        (500, None, None, True, FAILED),  # a backend's own
        (500, "internal_error", None, True, FAILED),
        (500, "poison_request", None, True, FAULT),
        (429, "overloaded", None, True, SHED),  # it would have waited too long
        (429, "overloaded", "lag", True, SHED),
        (429, "overloaded", "memory", True, SHED),
        (413, "context_too_long_now", None, True, SHED),
        (429, "overloaded", "connections", True, FAULT),
        (429, "overloaded", "unread", True, FAULT),
        (429, "rate_limited", None, True, FAULT),  # its tenant's budget is used up
        (429, None, None, True, SHED),  # a backend's own
        (400, None, None, True, FAULT),
        (401, "unauthorized", None, True, FAULT),
        (404, "model_not_found", None, True, FAULT),
        (413, "body_too_large", None, True, FAULT),
    ],
)
def test_how_a_request_ended(
    status: int, code: str | None, reason: str | None, whole: bool, outcome: Outcome
) -> None:
    assert outcome_of(status, code, reason, whole=whole) is outcome


OBJECTIVES = settings(
    ttft_s={"p50": 0.2, "p95": 0.5},
    itl_s={"p95": 0.05},
    e2e_s={"p95": 5.0},
    availability=0.999,
    error_rate=0.001,
    goodput=0.95,
)
NAMES = ["ttft_p50", "ttft_p95", "itl_p95", "e2e_p95", "availability", "error_rate", "goodput"]
Y, N, X = True, False, None  # good, bad, does not count


@pytest.mark.parametrize(
    ("sample", "verdicts"),
    [
        #                                      t50 t95 itl e2e ava err good
        (served(), [Y, Y, Y, Y, Y, Y, Y]),
        (served(ttft_s=0.3), [N, Y, Y, Y, Y, Y, Y]),  # goodput goes by the highest percentile
        (served(ttft_s=0.6), [N, N, Y, Y, Y, Y, N]),
        (served(itl_s=0.06), [Y, Y, N, Y, Y, Y, N]),
        (served(e2e_s=6.0), [Y, Y, Y, N, Y, Y, N]),
        (served(ttft_s=0.5, itl_s=0.05, e2e_s=5.0), [N, Y, Y, Y, Y, Y, Y]),  # as long is in time
        (ended(SHED), [X, X, X, X, N, X, N]),
        (ended(SHED, 0.3), [N, X, X, X, N, X, N]),  # it waited, in vain
        (ended(SHED, 6.0), [N, N, X, N, N, X, N]),
        (ended(FAILED), [X, X, X, X, N, N, N]),
        (ended(FAILED, 1.0), [N, N, X, X, N, N, N]),
        (ended(LEFT, 0.1), [X, X, X, X, X, X, X]),  # before the SLO's time
        (ended(LEFT, 0.4), [N, X, X, X, X, X, X]),
        (ended(LEFT, 1.0), [N, N, X, X, X, X, N]),  # after it: it had no token yet
        (ended(LEFT, 9.0), [N, N, X, N, X, X, N]),
        # Nobody's answer began in its pool while it waited.
        (ended(LEFT, 0.4, vain_s=0.1), [N, X, X, X, X, X, X]),  # not long enough
        (ended(LEFT, 0.6, vain_s=0.1), [N, N, X, X, N, N, N]),
        (ended(LEFT, 0.6, vain_s=0.7), [N, N, X, X, X, X, N]),  # its prompt is long
        (Sample(LEFT, 3.0, vain_s=0.1), [X, X, X, X, N, N, N]),  # no stream
        (ended(FAULT, 9.0), [X, X, X, X, X, X, X]),
        # It left after its first token, and its answer was not late yet.
        (Sample(LEFT, 2.0, streams=True, ttft_s=0.1, itl_s=0.02), [Y, Y, Y, X, X, X, X]),
        # No stream: it has no first token.
        (Sample(SERVED, 2.0, e2e_s=2.0), [X, X, X, Y, Y, Y, Y]),
        (Sample(SERVED, 6.0, e2e_s=6.0), [X, X, X, N, Y, Y, N]),
        # Its client was slower than the answer: nothing is known of the end.
        (Sample(SERVED, 0.0, streams=True, ttft_s=0.1), [Y, Y, X, X, Y, Y, Y]),
    ],
)  # fmt: skip
def test_which_objectives_a_request_counts_for(sample: Sample, verdicts: list[bool | None]) -> None:
    goals = list(goals_of(OBJECTIVES))
    assert [goal.name for goal in goals] == NAMES
    assert [goal.judge(sample) for goal in goals] == verdicts


@pytest.mark.parametrize(("targets", "patience_s"), [({}, 2.0), ({"p50": 0.2, "p95": 0.5}, 0.5),
                                                     ({"p95": 30.0}, 2.0)])  # fmt: skip
def test_who_leaves_in_vain_counts_after_a_time(
    targets: dict[str, float], patience_s: float
) -> None:
    asked = settings(availability=0.99, **({"ttft_s": targets} if targets else {}))
    goal = list(goals_of(asked))[-1]
    assert goal.judge(ended(LEFT, patience_s, vain_s=0.1)) is None
    assert goal.judge(ended(LEFT, patience_s + 0.1, vain_s=0.1)) is False
    assert goal.judge(ended(LEFT, patience_s + 0.1)) is None
