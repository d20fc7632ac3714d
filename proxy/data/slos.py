"""The service levels that are configured, by pool and class, with the clock."""

from collections.abc import Callable, Sequence

from penstock.balancing.slo.sample import Sample
from penstock.balancing.slo.slo import Slo
from penstock.balancing.slo.state import State
from penstock.balancing.slo.witnesses import Witnesses
from penstock.conf.settings import Settings

Key = tuple[str | None, str | None]


class Slos:
    """All entries of `slo`. `any`: whether there are some."""

    __slots__ = ("_now", "_slos", "any", "patience_s", "witnesses")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._slos: dict[Key, Slo] = {}
        self.any = False
        self.witnesses = Witnesses()
        self.patience_s = 0.0  # who leaves later with nothing has waited in vain, for some entry

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
        self.witnesses.keep({pool.name for pool in settings.pools})

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
