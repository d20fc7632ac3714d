"""How long a backend takes from one token to the next, and how that grows with what it holds.

Every step reads the weights and the KV cache of all streams in it, so it takes t0 + k K for K held
tokens, and longer where prompts are prefilled in it. A finished stream shows all three at once: it
took n steps and the prefill that was done meanwhile. What prefill took of it the measured prefill
speed tells; the rest, a step, is fitted to (1, K).
"""

from typing import Final

from balancing.least_squares import LeastSquares
from balancing.prefill_speed import LONG_AGO
from balancing.recent_pace import RecentPace

# Before anything is known: a step of 20 ms and 0.036 us a held token; bench/sim/profiles.py has 7
# to 27 ms and 0.015 to 0.080 us (the prior is their geometric mean). Worth a third of a sample.
PRIOR_STEP_S: Final = 0.020
PRIOR_HELD_TOKEN_S: Final = 0.036e-6
TRUST: Final = 0.3
FADE: Final = 0.995
SURPRISE_MAX: Final = 2.0
# The slope is the fainter of the two: no further from its prior than the profiles are, twice.
HELD_TOKEN_S_MAX: Final = 4 * PRIOR_HELD_TOKEN_S
# Where more of the time was others' prefill, the rest is not known well enough for a guess.
OTHERS_MAX: Final = 0.5
# Of shorter streams the ends of their steps, seen or not, are too much.
STEPS_MIN: Final = 16


def prior_s(held_tokens: float) -> float:
    """What a step takes before anything is known."""
    return PRIOR_STEP_S + PRIOR_HELD_TOKEN_S * held_tokens


class DecodeSpeed:
    """Seconds between two tokens, by the tokens held."""

    __slots__ = ("_fit", "recent")

    def __init__(self) -> None:
        self.recent = RecentPace()
        self._fit = LeastSquares(
            (PRIOR_STEP_S, PRIOR_HELD_TOKEN_S),
            (TRUST / PRIOR_STEP_S**2, TRUST / PRIOR_HELD_TOKEN_S**2),
            fade=FADE,
            surprise_max=SURPRISE_MAX,
            least=1e-6,
            keep=FADE,
        )

    @property
    def step_s(self) -> float:
        """Of a stream that is alone."""
        return self._fit.a

    @property
    def held_token_s(self) -> float:
        """What each held token adds."""
        return min(self._fit.b, HELD_TOKEN_S_MAX)

    def itl_s(self, held_tokens: float) -> float:
        """From one token to the next while so many are held."""
        return self.step_s + self.held_token_s * held_tokens

    @property
    def pace(self) -> float:
        """How many times as long as by the prior a step takes."""
        held_tokens = self.usual_held_tokens
        return self.itl_s(held_tokens) / prior_s(held_tokens)

    @property
    def weight(self) -> float:
        """What its samples are worth, the old ones less."""
        return self._fit.weight

    @property
    def usual_held_tokens(self) -> float:
        """Held while it was measured, in the mean."""
        return self._fit.mean_b

    def observe(
        self, steps: int, seconds: float, prefill_s: float, held_tokens: float, client: str = ""
    ) -> None:
        """A client's stream took so many steps; `prefill_s` of its time was others' prefill."""
        if steps >= STEPS_MIN:
            # Estimates of prefill may exceed what there was: a step takes a tenth at the least.
            prefill_s = min(prefill_s, 0.9 * seconds)
            slower = (seconds - prefill_s) / steps / prior_s(held_tokens)
            if prefill_s <= OTHERS_MAX * seconds:
                self.recent.observe(slower, client)
            if not self.recent.is_odd(slower):
                self._fit.observe((1.0, held_tokens), seconds / steps, prefill_s / steps)

    def observe_whole(self, steps: int, seconds: float, rest_s: float, held_tokens: float) -> None:
        """An answer took so long in all, of which `rest_s` should have been something else."""
        if steps >= STEPS_MIN:
            self._fit.observe((1.0, held_tokens), seconds / steps, rest_s / steps)

    def forget(self) -> None:
        """It was long ago: the next few samples outweigh it."""
        self._fit.forget(LONG_AGO)
        self.recent.forget()
