"""Canaries as JSON: where each stands, why, and what has happened."""

from collections.abc import Iterable
from datetime import UTC, datetime
from time import time

from penstock.balancing.canary.steps import Event
from penstock.proxy.data.canaries import Trial


def canary_listing(trials: Iterable[Trial], now_s: float) -> list[dict[str, object]]:
    """All canaries, in the order of the configuration."""
    return [_told(each, now_s) for each in trials]


def _told(trial: Trial, now_s: float) -> dict[str, object]:
    canary, settings = trial.canary, trial.canary.settings
    return {
        "route": trial.settings.name,
        "pool": settings.pool,
        "model": settings.model,
        "stage": canary.stage.value,
        "percent": canary.percent,
        "since": _when(canary.since_s, now_s),
        "why": canary.why,
        "steps": list(settings.steps),
        "requests": {
            "canary": canary.judge.canary.number,
            "stable": canary.judge.stable.number,
        },
        "compared": canary.judge.words(),
        "events": [_event(each, now_s) for each in trial.events],
    }


def _event(event: Event, now_s: float) -> dict[str, object]:
    return {
        "at": _when(event.at_s, now_s),
        "stage": event.stage.value,
        "percent": event.percent,
        "why": event.why,
    }


def _when(at_s: float, now_s: float) -> str:
    at = datetime.fromtimestamp(time() - now_s + at_s, UTC)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
