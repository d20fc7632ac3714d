"""The service levels that are configured: the objectives of each pool and class, with their times.

And why one is missed or nearly missed, in words, for the page and for verdicts.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

from penstock.balancing.slo.objective import (
    CALM_BELOW,
    CRITICAL_ABOVE,
    DAY_S,
    EASED_BELOW,
    KINDS,
    WARNS_ABOVE,
    Goal,
    Objective,
    State,
    goals_of,
    targets_of,
)
from penstock.balancing.slo.sample import Abandoned, Outcome, Sample
from penstock.balancing.slo.windows import Latencies, bounds_of
from penstock.conf.settings import Settings
from penstock.conf.slo import SloSettings

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
        took = "over an hour"
        if took_s is not None and took_s < inf:
            near = f"{took_s:.3g}" == f"{target_s:g}"  # and yet above it
            took = f"up to {took_s:.5g} s" if near else f"up to {took_s:.3g} s"
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


class Slo:
    """One entry of the configuration. `pool`, `service_class`: None for all."""

    def __init__(self, settings: SloSettings, now_s: float, before: "Slo | None" = None) -> None:
        """`before`: the entry for the same pool and class. What both have keeps its counts."""
        self.pool = settings.pool
        self.service_class = settings.service_class
        self.window_s = settings.window_s
        known = before.objectives if before is not None else ()
        self.objectives: tuple[Objective, ...] = tuple(
            [self._objective(goal, known, now_s) for goal in goals_of(settings)]
        )
        self.latencies: dict[str, Latencies] = {}
        self._longest_s: dict[str, float] = {}
        for kind in KINDS:
            targets_s = [target_s for _, target_s in targets_of(settings, kind)]
            if not targets_s:
                continue
            kept = before.latencies.get(kind) if before is not None else None
            bounds_s = bounds_of(targets_s)
            if kept is None or kept.bounds_s != bounds_s:
                kept = Latencies(bounds_s)
            self.latencies[kind] = kept
            self._longest_s[kind] = targets_s[-1]

    def _objective(self, goal: Goal, known: Iterable[Objective], now_s: float) -> Objective:
        for each in known:
            if each.counts_as(goal, self.window_s):
                each.goal = goal  # the share may be another one
                return each
        return Objective(goal, self.window_s, now_s)

    def add(self, sample: Sample, now_s: float) -> None:
        """Count one request that has ended."""
        moved = False
        for each in self.objectives:
            good = each.goal.judge(sample)
            if good is not None:
                moved = each.windows.add(good=good, now_s=now_s) or moved
        for kind, latencies in self.latencies.items():
            time_s = sample.time_of(kind)
            if time_s is None and sample.meets(kind, self._longest_s[kind]) is False:
                time_s = sample.elapsed_s  # at least: it ended without its first token, or its end
            if time_s is not None and sample.outcome is not Outcome.FAULT:
                latencies.add(time_s, now_s)
        if moved:
            self.evaluate(now_s)

    def evaluate(self, now_s: float) -> None:
        """Bring all counts and states up to date. Needed before they are read."""
        for latencies in self.latencies.values():
            latencies.advance(now_s)
        for each in self.objectives:
            kind = each.goal.targets[0][0] if each.goal.timed else ""
            each.evaluate(now_s, self.latencies.get(kind))


Key = tuple[str | None, str | None]


class Slos:
    """All entries of `slo`. `any`: whether there are some."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._slos: dict[Key, Slo] = {}
        self.any = False
        self.abandoned = Abandoned()
        self.patience_s = 0.0  # the shortest of all objectives

    def follow(self, settings: Settings) -> None:
        """Use these settings from now on. Objectives that stay keep their counts."""
        now_s, before = self._now(), self._slos
        self._slos = {}
        for each in settings.slo:
            key = (each.pool, each.service_class)
            self._slos[key] = Slo(each, now_s, before.get(key))
        self.any = bool(self._slos)
        goals = [each.goal for slo in self._slos.values() for each in slo.objectives]
        self.patience_s = min([goal.patience_s for goal in goals], default=0.0)
        self.abandoned.keep({pool.name for pool in settings.pools})

    def add(self, sample: Sample, pool: str, service_class: str) -> None:
        """Count a request in all entries that it belongs to. `pool`: empty if it is unknown."""
        now_s = self._now()
        for key in ((pool, service_class), (None, service_class), (pool, None), (None, None)):
            slo = self._slos.get(key)
            if slo is not None:
                slo.add(sample, now_s)

    def evaluated(self) -> Sequence[Slo]:
        """All entries in the configuration's order, with their counts and states up to date."""
        now_s = self._now()
        for slo in self._slos.values():
            slo.evaluate(now_s)
        return tuple(self._slos.values())

    def alarms(self) -> int:
        """How many objectives are in warning or critical."""
        states = [each.state for slo in self.evaluated() for each in slo.objectives]
        return len(states) - states.count(State.OK)
