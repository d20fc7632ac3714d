"""In turn, by weight: stride scheduling (Waldspurger 1995).

Each backend has a pass. The backend of the lowest pass is next, and its pass grows by 1/weight.
Passes stay fair when backends leave and return, which an index into a list does not: a backend
that was away resumes at the lowest pass of the others and does not catch up.
"""

from collections.abc import Sequence
from random import Random

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import (
    Explanation,
    Policy,
    SimplePolicy,
    all_cheapest,
    cheapest,
)


class RoundRobin(SimplePolicy):
    """Right for equal requests on equal servers. The usual default elsewhere."""

    def __init__(self) -> None:
        self._passes: dict[str, float] = {}
        self._time = 0.0  # the pass of the last choice

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return cheapest(fit, [self._pass_of(backend) for backend in fit], rng)

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        at = self._pass_of(chosen)
        self._time = max(self._time, at)
        self._passes[chosen.name] = at + 1.0 / chosen.weight

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return all_cheapest(fit, [self._pass_of(backend) for backend in fit])

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        # A backend that was light and is heavy now need not wait out its long turn.
        self._passes = {
            each.name: min(self._passes[each.name], self._time + 1.0 / each.weight)
            for each in backends
            if each.name in self._passes
        }

    def _pass_of(self, backend: Backend) -> float:
        # No pass counts as lower than that of the last choice, which was the lowest.
        return max(self._passes.get(backend.name, 0.0), self._time)
