"""The way of one request by its route, from one target to the next."""

from penstock.balancing.routes.decision import NO_FALLBACK, Decision
from penstock.balancing.routes.rule import Target


class Way:
    """Where one request goes now. `step`: how many of its fall-backs it has come to."""

    __slots__ = ("asked", "decision", "step")

    def __init__(self, decision: Decision, asked: str | None) -> None:
        """`asked`: the model that its client asked for."""
        self.decision = decision
        self.asked = asked
        self.step = 0

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
