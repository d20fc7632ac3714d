"""Builds SLOs and feeds them, for the tests beside it."""

from typing import Any

from penstock.balancing.slo.objective import Objective
from penstock.balancing.slo.sample import Outcome, Sample
from penstock.balancing.slo.slo import Slo
from penstock.conf.slo import SloSettings


def settings(**keys: Any) -> SloSettings:
    return SloSettings.model_validate(keys)


def slo(now_s: float = 0.0, before: Slo | None = None, **keys: Any) -> Slo:
    return Slo(settings(**keys), now_s, before)


def served(ttft_s: float = 0.1, e2e_s: float = 1.0, itl_s: float = 0.01) -> Sample:
    return Sample(Outcome.SERVED, e2e_s, streams=True, ttft_s=ttft_s, itl_s=itl_s, e2e_s=e2e_s)


def ended(outcome: Outcome, after_s: float = 0.0, vain_s: float | None = None) -> Sample:
    """A stream that ended without a token."""
    return Sample(outcome, after_s, streams=True, vain_s=vain_s)


def of(told: Slo, name: str) -> Objective:
    (found,) = (each for each in told.objectives if each.goal.name == name)
    return found
