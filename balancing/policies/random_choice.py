"""Drawn at random: evenly, or by weight."""

from collections.abc import Sequence
from random import Random

from balancing.ask import Ask
from balancing.backend import Backend


class RandomChoice:
    """Every fit backend alike: the floor that any other policy must beat."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return fit[rng.randrange(len(fit))]


class WeightedRandom:
    """In proportion to the configured weights."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return rng.choices(fit, [backend.weight for backend in fit])[0]
