"""What is decided for one request: its target, its fall-backs, and whether it is copied."""

from typing import Final

from penstock.balancing.routes.request import RouteRequest
from penstock.balancing.routes.rule import Rule, Target
from penstock.balancing.routes.split import length_of, place_of

NO_FALLBACK: Final = -1


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

    def after(self, step: int, cause: str) -> int:
        """The next step, if this one failed for this cause. NO_FALLBACK: there is none.

        Steps only go up, so there are at most as many as fall-backs. One that is the target itself
        is passed over: a split may have another target for which it is meant.
        """
        fallbacks, target = self.rule.fallbacks, self.place(0)
        for number in range(step, len(fallbacks)):
            each = fallbacks[number]
            if cause in each.causes and not each.target.same(target):
                return number + 1
        return NO_FALLBACK


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
