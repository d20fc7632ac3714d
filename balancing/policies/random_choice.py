"""Drawn at random: evenly, or by weight."""

from collections.abc import Sequence
from random import Random

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import SimplePolicy


class RandomChoice(SimplePolicy):
    """Every fit backend has the same chance. Any other policy must be better than this one."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return fit[rng.randrange(len(fit))]


class WeightedRandom(SimplePolicy):
    """In proportion to the configured weights."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return rng.choices(fit, [backend.weight for backend in fit])[0]
