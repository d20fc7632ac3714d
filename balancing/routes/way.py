"""The way of one request by its route, from one target to the next."""

from penstock.balancing.canary.draw import Draw
from penstock.balancing.routes.decision import NO_FALLBACK, Decision
from penstock.balancing.routes.rule import Target


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
        found: list[Target] = []
        step = self._after(self.step, cause)
        while step != NO_FALLBACK:
            found.append(self.decision.place(step))
            step = self._after(step, cause)
        return found

    def fall_back(self, cause: str, to: Target) -> bool:
        """Turn to `to`. False: it is none of these."""
        step = self._after(self.step, cause)
        while step != NO_FALLBACK:
            if self.decision.place(step) is to:
                self.step = step
                return True
            step = self._after(step, cause)
        return False

    def _after(self, step: int, cause: str) -> int:
        return NO_FALLBACK if self.stays else self.decision.after(step, cause)
