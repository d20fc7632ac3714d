"""A rule over a view, as a policy of the gate."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.policy import cheapest
from bench.baselines.view import Seen, View


class Baseline(ABC):
    """Takes the backend of least cost; a subclass says what a place there costs."""

    def __init__(self, view: View) -> None:
        self.view = view

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        seen = {backend: self.view.backends[int(backend.name)] for backend in fit}
        allowed = self.allowed(list(seen.values()))
        places = [backend for backend in fit if seen[backend] in allowed]
        return cheapest(places, [self.cost(seen[backend]) for backend in places], rng)

    def allowed(self, backends: list[Seen]) -> list[Seen]:
        """Those that come into question, at least one."""
        return backends

    @abstractmethod
    def cost(self, backend: Seen) -> float:
        """What this request would cost there; the least is taken."""
