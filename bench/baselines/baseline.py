"""A rule over a view, as a policy of the gate.

It is never compiled, so it cannot inherit from the compiled `SimplePolicy`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import ClassVar

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import Explanation, Part, Policy, cheapest
from penstock.bench.baselines.view import Seen, View


class Baseline(ABC):
    """Takes the backend of least cost. A subclass says what a place there costs."""

    needs_sessions: ClassVar[bool] = False
    needs_prefixes: ClassVar[bool] = False
    costs_seconds: ClassVar[bool] = False

    def __init__(self, view: View) -> None:
        self.view = view

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        seen = {backend: self.view.backends[int(backend.name)] for backend in fit}
        allowed = self.allowed(list(seen.values()))
        places = [backend for backend in fit if seen[backend] in allowed]
        return cheapest(places, [self.cost(seen[backend]) for backend in places], rng)

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        return  # what was sent is in the view

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        return [self.cost(self.view.backends[int(backend.name)]) for backend in fit]

    def allowed(self, backends: list[Seen]) -> list[Seen]:
        """Those that come into question, at least one."""
        return backends

    @property
    def homes(self) -> None:
        return None

    def home(self, ask: Ask) -> str | None:
        return None

    def remember(self, ask: Ask, chosen: Backend) -> None:
        return  # it learns nothing of sessions

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return Explanation([], [Part()] * len(fit))

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        return  # experiments have no reload

    @abstractmethod
    def cost(self, backend: Seen) -> float:
        """What this request would cost there; the least is taken."""
