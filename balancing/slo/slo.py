"""The objectives of one pool and class, and the times that their percentiles are read from."""

from collections.abc import Iterable

from penstock.balancing.slo.latencies import Latencies, bounds_of
from penstock.balancing.slo.objective import Goal, Objective, goals_of
from penstock.balancing.slo.sample import Outcome, Sample
from penstock.conf.slo import SloSettings


class Slo:
    """One entry of the configuration. `pool`, `service_class`: None for all."""

    __slots__ = ("_longest_s", "latencies", "objectives", "pool", "service_class", "window_s")

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
        for kind, percentiles in (
            ("ttft", settings.ttft_s),
            ("itl", settings.itl_s),
            ("e2e", settings.e2e_s),
        ):
            if percentiles is None:
                continue
            targets_s = [target_s for _, target_s in percentiles.targets]
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
