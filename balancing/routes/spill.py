"""Which target of a route gets a request, where requests may spill from one to another.

A request stays at the target that its split gives it, unless another one costs clearly less now:
its own time there, and what it takes of others' (`policies/cost.py`), and its wait before that. So
a long prompt leaves a full pool for long ones only for a pool in which it holds up few streams.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from penstock.balancing.routes.decision import Decision
from penstock.balancing.routes.rule import Target

# What another target must save, of the cost and in seconds. With less, many interactive requests
# went to engines on which a long prompt was the next one to come (bench/RESULTS.md).
SAVED_SHARE: Final = 0.5
SAVED_S: Final = 1.0


def spilled(decision: Decision, cost_s: Callable[[Target], float]) -> Decision:
    """The same decision with the target that costs least. `cost_s`: inf where it cannot be served.

    A target of weight 0 gets requests only so.
    """
    usual = decision.target
    assert usual is not None
    usual_s = cost_s(usual)
    best, best_s = usual, usual_s - max(SAVED_S, SAVED_SHARE * usual_s) if usual_s < inf else inf
    for target in decision.rule.targets:
        if target is not usual:
            seconds = cost_s(target)
            if seconds < best_s:
                best, best_s = target, seconds
    return decision if best is usual else Decision(decision.rule, best, decision.mirrored)
