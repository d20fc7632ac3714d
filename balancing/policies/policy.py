"""What a policy is, and what the parts of a policy share.

A policy chooses among backends that are fit and have not failed this request. There is at least
one. A policy may keep state of its own, as round robin does, but it changes no load: the lease
does that after the choice. A choice is only a look: the request may have to wait, and is then
chosen for again. `placed` tells that it was sent. Ties must split evenly. Otherwise the first
backend of every configuration would be the busiest of its fleet.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar, NamedTuple, Protocol

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fair_table import KeyTable


class Part(NamedTuple):
    """What a policy says about one backend in a choice. An empty text says nothing."""

    cost_s: float | None = None
    terms: Mapping[str, float] | None = None  # the parts of the cost by name, in seconds
    to_win: str = ""  # what would have to change at this backend for it to be chosen
    why_not: str = ""  # why it is not chosen, where no change at this backend would do


class Explanation(NamedTuple):
    """A dry run of a choice. `parts` has one entry for each backend that could be chosen."""

    best: list[Backend]  # one of them would be chosen; empty: the policy draws at random
    parts: list[Part]


class Policy(Protocol):
    """Chooses one backend of a pool for each request. Every pool has a policy of its own."""

    # Whether requests must be read for their session key, and prompts cut into blocks.
    needs_sessions: ClassVar[bool]
    needs_prefixes: ClassVar[bool]
    costs_seconds: ClassVar[bool]  # what `costs` returns are seconds

    @property
    def homes(self) -> KeyTable[str] | None:
        """The backend of each session's last turn, if it remembers that."""
        ...

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        """Choose one of `fit`. Counts nothing: the request may be chosen for again."""
        ...

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        """Count that `ask` is sent to `chosen`. `choose` was called for it in this moment."""
        ...

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        """What each would cost, in a unit of the policy's own. All equal: each is as good."""
        ...

    def home(self, ask: Ask) -> str | None:
        """The name of the backend that the session of `ask` belongs to. None: it has none.

        Only called for a request with a session key.
        """
        ...

    def remember(self, ask: Ask, chosen: Backend) -> None:
        """Note where the session of `ask` goes, also when only one backend could serve it.

        Only called for a request with a session key.
        """
        ...

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        """Say what `choose` would do, and why. Changes nothing."""
        ...

    def follow(self, new: "Policy", backends: Sequence[Backend]) -> None:
        """Take what a reload changed, and keep the rest.

        `new` is the same policy as the new configuration makes it. `backends` are all of the pool
        from now on, with their new weights.
        """
        ...


class SimplePolicy:
    """What most policies have in common: they need, remember and explain nothing."""

    needs_sessions: ClassVar[bool] = False
    needs_prefixes: ClassVar[bool] = False
    costs_seconds: ClassVar[bool] = False

    @property
    def homes(self) -> KeyTable[str] | None:
        return None

    def home(self, ask: Ask) -> str | None:
        return None

    def remember(self, ask: Ask, chosen: Backend) -> None:
        """There is nothing to remember."""

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        """There is nothing to count."""

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        return [1.0] * len(fit)

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return Explanation([], [Part()] * len(fit))

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        """Weights and members are read from the backends at each choice."""


def cheapest(fit: Sequence[Backend], costs: Sequence[float], rng: Random) -> Backend:
    """The backend of least cost (one each, in the same order). Reservoir sampling splits ties
    evenly."""
    best, lowest, ties = 0, costs[0], 1
    for place in range(1, len(fit)):
        cost = costs[place]
        if cost < lowest:
            best, lowest, ties = place, cost, 1
        elif cost == lowest:
            ties += 1
            if rng.random() * ties < 1.0:
                best = place
    return fit[best]


def all_cheapest(fit: Sequence[Backend], costs: Sequence[float]) -> Explanation:
    """All backends of least cost: `cheapest` would draw one of them."""
    lowest = min(costs)
    best = [backend for backend, cost in zip(fit, costs, strict=True) if cost == lowest]
    return Explanation(best, [Part()] * len(fit))


class LeastPolicy(SimplePolicy):
    """Takes a backend of which there is least: of what `weigh` says, one number for each."""

    def weigh(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> list[float]:
        raise NotImplementedError

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return cheapest(fit, self.weigh(fit, ask, now_s), rng)

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return all_cheapest(fit, self.weigh(fit, ask, now_s))
