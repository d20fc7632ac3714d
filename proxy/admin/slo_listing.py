"""What users are promised and how far it is kept, as JSON."""

from collections.abc import Sequence
from math import inf

from penstock.balancing.slo.objective import Objective, pairs_within, rate_of
from penstock.balancing.slo.slo import Slo, because
from penstock.balancing.slo.windows import Latencies


def slo_listing(slos: Sequence[Slo], now_s: float) -> list[dict[str, object]]:
    """One entry for each objective, in the configuration's order.

    A share or a time is null where no request says anything about it.
    """
    listing = []
    for slo in slos:
        for each in slo.objectives:
            kind = each.goal.targets[0][0] if each.goal.timed else ""
            listing.append(
                {"pool": slo.pool, "class": slo.service_class}
                | _told(each, slo.latencies.get(kind), now_s)
            )
    return listing


def _told(objective: Objective, latencies: Latencies | None, now_s: float) -> dict[str, object]:
    goal = objective.goal
    good, bad = objective.budget_counts
    burns, shares = objective.burn_rates, objective.compliances
    told: dict[str, object] = {
        "slo": goal.name,
        "state": objective.state.word,
        "because": because(objective, latencies, now_s) or None,
        "objective": round(goal.share, 6),
        "targets_s": dict(goal.targets),
        "measured_s": None,
        "window_s": objective.window_s,
        "observed_s": round(min(objective.window_s, now_s - objective.since_s), 3),
        "requests": good + bad,
        "bad": bad,
        "compliance": objective.compliance,
        "budget_left": round(1.0 - objective.budget_spent(now_s), 6),
        "windows": {
            name: {"compliance": shares[name], "burn_rate": round(burns[name], 3)} for name in burns
        },
        "alerts": [
            {
                "short": pair.short,
                "long": pair.long,
                "burn_rate": round(rate_of(pair, goal.share, objective.window_s), 3),
                "pages": pair.pages,
            }
            for pair in pairs_within(objective.window_s)
        ],
    }
    if latencies is not None:
        measured_s = latencies.percentile_s(goal.share)
        if measured_s is not None and measured_s < inf:
            told["measured_s"] = round(measured_s, 6)
    return told
