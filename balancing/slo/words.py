"""Why a service level is missed or nearly missed, in words, for the page and for verdicts."""

from math import inf
from typing import Final

from penstock.balancing.slo.burn import DAY_S
from penstock.balancing.slo.latencies import Latencies
from penstock.balancing.slo.objective import Objective
from penstock.balancing.slo.state import CALM_BELOW, CRITICAL_ABOVE, EASED_BELOW, WARNS_ABOVE, State

_TIMED: Final = {"ttft": "first tokens", "itl": "times between tokens", "e2e": "answers"}


def _eases(objective: Objective) -> str:
    """Where a state goes on although its limit is kept again: when it ends."""
    critical = objective.state is State.CRITICAL
    limit = CRITICAL_ABOVE if critical else WARNS_ABOVE
    eased = EASED_BELOW if critical else CALM_BELOW
    return "" if objective.nearest.used > limit else f" (the state ends at {eased:.0%} of that)"


def because(objective: Objective, latencies: Latencies | None, now_s: float) -> str:
    """What its state follows from. Empty if it is kept. `latencies`: those of its kind."""
    goal, limit = objective.goal, objective.nearest
    if objective.state is State.OK:
        return ""
    if limit.kind == "percentile" and latencies is not None:
        kind, target_s = goal.targets[0]
        took_s = latencies.percentile_s(goal.share)
        took = "over an hour" if took_s is None or took_s == inf else f"up to {took_s:.3g} s"
        return (
            f"{100.0 * goal.share:g}% of {_TIMED[kind]} took {took} in the last hour, "
            f"{target_s:g} s is asked for{_eases(objective)}"
        )
    if limit.kind == "burn":
        good, bad = objective.burned(limit.span)
        rate = objective.burn_rates[limit.span]
        return (
            f"{bad:,} of {good + bad:,} requests of the last {limit.span} were bad, and use up "
            f"its error budget {rate:.3g} times too fast"
        )
    good, bad = objective.budget_counts
    days = objective.window_s / DAY_S
    span = f"{days:.3g} days" if days > 1.0 else f"{24.0 * days:.3g} h"
    return (
        f"{bad:,} of {good + bad:,} requests of the last {span} were bad, which uses up "
        f"{objective.budget_spent(now_s):.0%} of its error budget"
    )
