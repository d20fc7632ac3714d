"""The alert rules of service levels: how fast an error budget burns, in two windows at once.

They go by counters and not by the gauges: sums over replicas and over restarts stay right.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.balancing.slo.objective import BAD_MIN, Goal, Pair, goals_of, pairs_within, rate_of
from penstock.conf.slo import SloSettings
from penstock.proxy.commands.fleet_alerts import CRITICAL, WARNING, Rule
from penstock.proxy.telemetry.slo_families import ALL

_NAMES: Final = {"1h": "PenstockSloFastBurn", "6h": "PenstockSloBurn", "3d": "PenstockSloSlowBurn"}

_ADVICE: Final = {
    "ttft": "Requests wait, or prompts are computed slowly: see queued tokens by backend.",
    "itl": "Engines decode slowly: see held tokens and the KV cache by backend.",
    "e2e": "Answers are long, or engines are slow: see penstock_inter_token_latency_seconds.",
    "availability": "Requests are refused or fail: see penstock_shed_total and"
    " penstock_attempts_total by reason.",
    "error": "Requests fail: see penstock_attempts_total and penstock_stream_failures_total by"
    " reason.",
    "goodput": "Requests are refused, fail or are slow: see the other objectives first.",
}


def slo_rules(slos: Iterable[SloSettings]) -> Iterator[Rule]:
    """The rules of all objectives: up to two pages and a ticket for each."""
    for slo in slos:
        for goal in goals_of(slo):
            for pair in pairs_within(slo.window_s):
                yield _rule(slo, goal, pair)


def _rule(slo: SloSettings, goal: Goal, pair: Pair) -> Rule:
    labels = {"pool": slo.pool or ALL, "priority": slo.service_class or ALL, "slo": goal.name}
    where = [
        f"{key} {name}"
        for key, name in (("pool", slo.pool), ("class", slo.service_class))
        if name is not None
    ]
    place = f" of {', '.join(where)}" if where else ""
    target = f" ({goal.targets[0][1]:g} s)" if goal.timed else ""
    return Rule(
        _NAMES[pair.long],
        _expr(labels, goal, pair, slo.window_s),
        None,
        CRITICAL if pair.pages else WARNING,
        f"{{{{ $value | humanizePercentage }}}} of the requests{place} missed {goal.name}{target}"
        f" in {pair.long}; {100.0 * (1.0 - goal.share):.4g}% may.",
        f"Run penstock status and read its last lines. {_ADVICE[goal.name.partition('_')[0]]}",
        labels,
    )


def _expr(labels: Mapping[str, str], goal: Goal, pair: Pair, window_s: float) -> str:
    """The share of bad requests is above its limit in both windows, and they are not few."""
    chosen = ", ".join([f'{name}="{value}"' for name, value in labels.items()])
    limit = rate_of(pair, goal.share, window_s) * (1.0 - goal.share)
    bad = f'sum(increase(penstock_slo_requests_total{{{chosen}, verdict="bad"}}[%s]))'
    valid = f"sum(increase(penstock_slo_requests_total{{{chosen}}}[%s]))"
    parts = [
        f"{bad % window}\n  / {valid % window} > {limit:.6g}" for window in (pair.long, pair.short)
    ]
    # Extrapolation may count a little less than there was.
    return "\nand ".join([*parts, f"{bad % pair.long} > {BAD_MIN - 1}"])
