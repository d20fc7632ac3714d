"""One route, and what it decides for a request: target, fall-backs, mirror, and its way."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from penstock.balancing.canary.steps import Draw
from penstock.balancing.routes.match import Match
from penstock.balancing.routes.request import RouteRequest
from penstock.balancing.routes.split import Split, length_of, place_of


class Target(NamedTuple):
    """A pool, and the name of the model that it is sent. None: the one that was asked for."""

    pool: str
    model: str | None


class Fallback(NamedTuple):
    """A target that is tried for some causes, in place of one that could not serve."""

    target: Target
    causes: frozenset[str]


class Mirror(NamedTuple):
    """A target that gets a copy of a share of the requests. `seed`: of the hash that draws them.

    `forward_authorization`: with the key of its client.
    """

    target: Target
    share: float
    seed: int
    forward_authorization: bool = False


class Changes(NamedTuple):
    """What is changed in a request: headers, the length of its answer, members that it lacks.

    `defaults` are JSON.
    """

    headers: tuple[tuple[bytes, bytes], ...] = ()
    max_tokens: int | None = None
    defaults: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(slots=True, eq=False)
class Rule:
    """A route. `refusal` is None unless it refuses its requests; it has no targets then.

    `canary`: the last target is one, whose share changes. `changes`: None if there are none, which
    costs nothing.
    """

    name: str
    match: Match
    targets: tuple[Target, ...]
    split: Split | None
    refusal: str | None = None
    sticky: str = "session"
    fallbacks: tuple[Fallback, ...] = ()
    mirror: Mirror | None = None
    changes: Changes | None = None
    spill: bool = False
    canary: bool = False


class Decision:
    """Where a request goes. `target` is None when it is refused (`rule.refusal`).

    Step 0 is the target, step 1 the first fall-back, and so on.
    """

    __slots__ = ("mirrored", "rule", "target")

    def __init__(self, rule: Rule, target: Target | None, mirrored: bool) -> None:
        self.rule = rule
        self.target = target
        self.mirrored = mirrored

    def place(self, step: int) -> Target:
        """What is tried at this step."""
        if step:
            return self.rule.fallbacks[step - 1].target
        assert self.target is not None, "a refused request is sent nowhere"
        return self.target

    def steps(self, step: int, cause: str) -> list[int]:
        """The steps after this one, if each of them fails for this cause.

        A fall-back that is the target itself is passed over: a split may have another target for
        which it is meant.
        """
        target = self.place(0)
        return [
            number
            for number, each in enumerate(self.rule.fallbacks, 1)
            if number > step and cause in each.causes and each.target != target
        ]


def decided(rule: Rule, request: RouteRequest) -> Decision:
    """The decision by the route that matches. The same key gets the same one."""
    if rule.split is None:
        return Decision(rule, None, False)
    mirror = rule.mirror
    if rule.split.single and (mirror is None or mirror.share >= 1.0):
        return Decision(rule, rule.targets[rule.split.owner("")], mirror is not None)
    key = request.key(rule.sticky)
    mirrored = False
    if mirror is not None:
        # By key, too: then its caches see whole sessions, as those of the target do.
        mirrored = place_of(key, mirror.seed) < length_of(mirror.share)
    return Decision(rule, rule.targets[rule.split.owner(key)], mirrored)


# What another target must save where requests may spill, of the cost and in seconds. With less,
# many interactive requests went to engines on which a long prompt was the next one
# (bench/RESULTS.md).
SAVED_SHARE: Final = 0.5
SAVED_S: Final = 1.0


def spilled(decision: Decision, cost_s: Callable[[Target], float]) -> Decision:
    """The same decision with the target that costs least. `cost_s`: inf where it cannot be served.

    A request stays at the target that its split gives it, unless another one costs clearly less
    now: its own time there, what it takes of others' (`policies/cost.py`), and its wait before
    that. So a long prompt leaves a full pool for long ones only for a pool in which it holds up few
    streams. A target of weight 0 gets requests only so.
    """
    usual = decision.target
    assert usual is not None
    usual_s = cost_s(usual)
    best, best_s = usual, usual_s - max(SAVED_S, SAVED_SHARE * usual_s) if usual_s < inf else inf
    for target in decision.rule.targets:
        if target is not usual:
            seconds = cost_s(target)
            if seconds < best_s:
                best, best_s = target, seconds
    return decision if best is usual else Decision(decision.rule, best, decision.mirrored)


class Way:
    """Where one request goes now. `step`: how many of its fall-backs it has come to.

    `stays`: only its target has what it asks for. `draw`: None if its route has no canary, or if
    its version was not drawn.
    """

    __slots__ = ("asked", "decision", "draw", "stays", "step")

    def __init__(
        self, decision: Decision, asked: str | None, *, step: int = 0, stays: bool = False
    ) -> None:
        """`asked`: the model that its client asked for."""
        self.decision = decision
        self.asked = asked
        self.step = step
        self.stays = stays
        self.draw: Draw | None = None

    @property
    def canary(self) -> bool:
        """Whether it was drawn to the canary."""
        rule = self.decision.rule
        return rule.canary and self.decision.target is rule.targets[-1]

    @property
    def target(self) -> Target:
        return self.decision.place(self.step)

    def fallbacks(self, cause: str) -> list[Target]:
        """All fall-backs for this cause that are still to come."""
        return [self.decision.place(step) for step in self._steps(cause)]

    def fall_back(self, cause: str, to: Target) -> bool:
        """Turn to `to`. False: it is none of these."""
        for step in self._steps(cause):
            if self.decision.place(step) is to:
                self.step = step
                return True
        return False

    def _steps(self, cause: str) -> list[int]:
        return [] if self.stays else self.decision.steps(self.step, cause)
