"""In turn, by weight: stride scheduling (Waldspurger 1995).

Each backend has a pass; the lowest goes next and moves on by 1/weight. Unlike
an index into a list, passes stay fair when backends leave and return: one that
was away resumes at the lowest pass of the others instead of catching up.
"""

from collections.abc import Sequence
from random import Random

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.policy import cheapest


class RoundRobin:
    """Right for equal requests on equal servers; the usual default elsewhere."""

    def __init__(self) -> None:
        self._passes: dict[str, float] = {}
        self._time = 0.0  # the pass of the last choice: where the fleet is

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        chosen = cheapest(fit, [self._pass_of(backend) for backend in fit], rng)
        at = self._pass_of(chosen)
        self._time = max(self._time, at)
        self._passes[chosen.name] = at + 1.0 / chosen.weight
        return chosen

    def _pass_of(self, backend: Backend) -> float:
        # Who takes part is never behind the last choice, which was the lowest.
        return max(self._passes.get(backend.name, 0.0), self._time)
