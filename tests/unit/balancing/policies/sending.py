"""Chooses as a gate does: the policy hears that the request was sent."""

from collections.abc import Sequence
from random import Random

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import Policy


def sent(policy: Policy, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
    """Choose, and send the request there. Nothing is reserved."""
    chosen = policy.choose(fit, ask, now_s, rng)
    policy.placed(chosen, fit, ask, now_s)
    return chosen
