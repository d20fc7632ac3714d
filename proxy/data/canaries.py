"""The canaries of all routes: each request is noted, and once a second they move.

A reload keeps a canary whose settings are the same. One that gets another share moves the split of
its route, so the next request is drawn by it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.balancing.canary.steps import MOVES, Canary, Event, Stage
from penstock.balancing.lease import Lease
from penstock.balancing.routes.building import split_of
from penstock.balancing.routes.rule import Rule
from penstock.conf.routes import RouteSettings
from penstock.proxy.data.evidence import evidence_of
from penstock.proxy.data.request import Request

logger = logging.getLogger(__name__)

EVENTS_MAX: Final = 32


class Trial:
    """One route's canary, with the route's settings and what has happened."""

    __slots__ = ("canary", "events", "rule", "settings")

    def __init__(self, settings: RouteSettings, rule: Rule, canary: Canary) -> None:
        self.settings = settings
        self.rule = rule
        self.canary = canary
        self.events: list[Event] = []


class Canaries:
    """All that run, by the name of their route."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.trials: dict[str, Trial] = {}
        self.changed = False  # since it was kept last

    def follow(self, routes: Iterable[RouteSettings], rules: Iterable[Rule]) -> None:
        """Run the canaries of these routes. One that is known from before goes on."""
        now_s, trials = self._now(), dict[str, Trial]()
        for settings, rule in zip(routes, rules, strict=True):
            if settings.canary is None:
                continue
            before = self.trials.get(settings.name)
            trial = Trial(settings, rule, Canary(settings.canary, now_s))
            if before is not None:
                trial.events = before.events
                trial.canary = before.canary
                if before.canary.settings != settings.canary:  # the same version goes on
                    kept = before.canary.to_state()
                    trial.canary = Canary.from_state(settings.canary, kept, now_s)
            trials[settings.name] = trial
            self._share(trial)
        self.trials = trials
        self.changed = True

    def resume(self, kept: Mapping[str, object]) -> None:
        """Go on where they stood before a restart, by the name of their route."""
        for name, trial in self.trials.items():
            settings = trial.canary.settings
            trial.canary = Canary.from_state(settings, kept.get(name), self._now())
            self._share(trial)

    def ended(self, request: Request, lease: Lease | None) -> None:
        """A request has ended. Only those that were drawn to a version count."""
        way = request.way
        draw = way.draw if way is not None else None
        if way is None or draw is None or draw.canary.stage not in MOVES:
            return
        found = evidence_of(request, way, draw, lease)
        if found is not None:
            draw.canary.ended(found, request.record.ended_s)

    def look(self, now_s: float) -> None:
        """Move those whose time it is."""
        for trial in self.trials.values():
            event = trial.canary.look(now_s)
            if event is not None:
                self._moved(trial, event)

    def order(self, route: str, what: str) -> Trial | None:
        """An operator's word: `promote`, `abort` or `restart`. None: the route has no canary."""
        trial = self.trials.get(route)
        if trial is None:
            return None
        canary, now_s = trial.canary, self._now()
        told = {"promote": canary.promote, "abort": canary.abort, "restart": canary.begin}
        self._moved(trial, told[what](now_s))
        return trial

    def standings(self) -> Iterable[tuple[str, str, float]]:
        """By route: the stage, and the share in percent."""
        canaries = [(name, trial.canary) for name, trial in self.trials.items()]
        return [(name, each.stage.value, each.percent) for name, each in canaries]

    def to_state(self) -> dict[str, object]:
        """What to keep over a restart, by route."""
        return {name: trial.canary.to_state() for name, trial in self.trials.items()}

    def _moved(self, trial: Trial, event: Event) -> None:
        self.changed = True
        trial.events = [*trial.events[1 - EVENTS_MAX :], event]
        self._share(trial)
        level = logging.WARNING if event.stage is Stage.ROLLED_BACK else logging.INFO
        logger.log(
            level,
            "canary route=%s stage=%s percent=%g why=%s",
            *(trial.settings.name, event.stage.value, event.percent, event.why),
        )

    def _share(self, trial: Trial) -> None:
        """Give the canary its share of the route's requests."""
        trial.rule.split = split_of(trial.settings, trial.canary.percent)
