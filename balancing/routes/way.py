"""The way of one request by its route, from one target to the next."""

from penstock.balancing.routes.decision import NO_FALLBACK, Decision
from penstock.balancing.routes.rule import Target


class Way:
    """Where one request goes now. `step`: how many of its fall-backs it has come to.

    With a canary: `drawn` whether its version was drawn, `key` the hash that drew it and whether
    that is `fresh` (`canary/fresh_keys.py`), and what was before it at its backend.
    """

    __slots__ = ("asked", "decision", "drawn", "fresh", "key", "queued_tokens", "step", "streams")

    def __init__(self, decision: Decision, asked: str | None) -> None:
        """`asked`: the model that its client asked for."""
        self.decision = decision
        self.asked = asked
        self.step = 0
        self.drawn = False
        self.key: int | None = None
        self.fresh = True
        self.queued_tokens = self.streams = 0

    @property
    def canary(self) -> bool:
        """Whether it was drawn to the canary."""
        rule = self.decision.rule
        return rule.canary and self.decision.target is rule.targets[-1]

    @property
    def target(self) -> Target:
        return self.decision.place(self.step)

    def may_fall_back(self, cause: str) -> bool:
        """Whether there is one more fall-back for this cause."""
        return self.decision.after(self.step, cause) != NO_FALLBACK

    def fall_back(self, cause: str) -> bool:
        """Turn to the next fall-back for this cause. False: there is none."""
        step = self.decision.after(self.step, cause)
        if step == NO_FALLBACK:
            return False
        self.step = step
        return True
