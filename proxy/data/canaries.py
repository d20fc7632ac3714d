"""The canaries of all routes: each request is noted, and once a second they move.

A reload keeps a canary whose settings are the same. A version that was rolled back stays so, also
if a reload drops its canary and a later one adds it again. A canary that gets another share moves
the split of its route, so the next request is drawn by it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.balancing.canary.steps import MOVES, Canary, Event, Stage
from penstock.balancing.fair_table import put_last
from penstock.balancing.lease import Lease
from penstock.balancing.routes.building import split_of
from penstock.balancing.routes.decision import Rule
from penstock.conf.canary import CanarySettings
from penstock.conf.routes import RouteSettings
from penstock.proxy.data.evidence import evidence_of
from penstock.proxy.data.request import Request

logger = logging.getLogger(__name__)

EVENTS_MAX: Final = 32
# Of rolled back versions the oldest is forgotten first. Only the operator's configurations add any.
VERSIONS_MAX: Final = 256
# Where the file keeps them. No route has this name.
_ROLLED_BACK: Final = ""
Version = tuple[str, str, str | None]  # a route, its canary's pool and model


def version_of(route: str, settings: CanarySettings) -> Version:
    """What a route's canary tries."""
    return route, settings.pool, settings.model


class RolledBack:
    """The versions that were rolled back, each with the reason."""

    def __init__(self) -> None:
        self._why: dict[Version, str] = {}

    def note(self, version: Version, why: str) -> None:
        """A version was rolled back."""
        put_last(self._why, version, why, VERSIONS_MAX)

    def forget(self, version: Version) -> None:
        """An operator has let it go on."""
        self._why.pop(version, None)

    def why(self, version: Version) -> str | None:
        """Why it was rolled back. None: it was not."""
        return self._why.get(version)

    def to_state(self) -> list[list[str | None]]:
        """All of them, as JSON."""
        return [[*version, why] for version, why in self._why.items()]

    def read(self, state: object) -> None:
        """Take what was kept. What cannot be read is left out."""
        for each in state if isinstance(state, list) else []:
            match each:
                case [str(route), str(pool), str() | None as model, str(why)]:
                    self.note((route, pool, model), why)
                case _:
                    pass


class Trial:
    """One route's canary, with the route's settings and what has happened."""

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
        self._rolled_back = RolledBack()

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
            self._begin(trial, now_s)
        self.trials = trials
        self.changed = True

    def resume(self, kept: Mapping[str, object]) -> None:
        """Go on where they stood before a restart, by the name of their route."""
        now_s = self._now()
        self._rolled_back.read(kept.get(_ROLLED_BACK))
        for name, trial in self.trials.items():
            trial.canary = Canary.from_state(trial.canary.settings, kept.get(name), now_s)
            self._begin(trial, now_s)

    def ended(self, request: Request, lease: Lease | None) -> None:
        """A request has ended. Only those that were drawn to a version count."""
        way = request.way
        draw = way.draw if way is not None else None
        if way is None or draw is None or draw.told or draw.canary.stage not in MOVES:
            return
        found = evidence_of(request, way, draw, lease)
        if found is not None:
            draw.canary.ended(found, request.record.ended_s)

    def slept(self) -> None:
        """The process did not run: nobody is to blame for what waits."""
        for trial in self.trials.values():
            trial.canary.slept()

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
        kept: dict[str, object] = {
            name: trial.canary.to_state() for name, trial in self.trials.items()
        }
        rolled_back = self._rolled_back.to_state()
        return kept | {_ROLLED_BACK: rolled_back} if rolled_back else kept

    def _begin(self, trial: Trial, now_s: float) -> None:
        """Let a canary begin or go on, unless its version was rolled back before."""
        canary = trial.canary
        version = version_of(trial.settings.name, canary.settings)
        why = self._rolled_back.why(version)
        if canary.stage is Stage.ROLLED_BACK:
            self._rolled_back.note(version, canary.why)
        elif why is not None and canary.stage is not Stage.ABORTED:
            self._moved(trial, canary.stay_back(why, now_s))
            return
        self._share(trial)

    def _moved(self, trial: Trial, event: Event) -> None:
        self.changed = True
        version = version_of(trial.settings.name, trial.canary.settings)
        if event.stage is Stage.ROLLED_BACK:
            self._rolled_back.note(version, event.why)
        elif event.stage in (Stage.RUNNING, Stage.PROMOTED):
            self._rolled_back.forget(version)
        trial.events = [*trial.events[1 - EVENTS_MAX :], event]
        self._share(trial)
        level = logging.WARNING if event.stage is Stage.ROLLED_BACK else logging.INFO
        logger.log(
            level,
            "canary route=%s stage=%s percent=%g why=%s",
            *(trial.settings.name, event.stage.value, event.percent, event.why),
        )

    def _share(self, trial: Trial) -> None:
        trial.rule.split = split_of(trial.settings, trial.canary.percent)
