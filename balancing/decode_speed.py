"""The time that a backend takes from one token to the next, and how it grows with held tokens.

Every decode step reads the weights and the KV cache of all its streams. So it takes t0 + k K for K
held tokens, and longer when it also prefills prompts. A finished stream shows the sum: it took n
steps and the prefill that was done meanwhile. The measured prefill speed tells the time for
prefill. The rest, divided by n, is fitted to (1, K), for each client apart (`fair_fit`): a stream
of which only the last tokens are shown would make every step look short.
"""

from typing import Final

from penstock.balancing.fair_fit import FairFit
from penstock.balancing.prefill_speed import LONG_AGO
from penstock.balancing.recent_pace import RecentPace

# Before anything is known: a step of 20 ms and 0.036 us for a held token. bench/sim/profiles.py has
# 7 to 27 ms and 0.015 to 0.080 us (the prior is the geometric mean). Worth a third of a sample.
PRIOR_STEP_S: Final = 0.020
PRIOR_HELD_TOKEN_S: Final = 0.036e-6
TRUST: Final = 0.3
FADE: Final = 0.995
SURPRISE_MAX: Final = 2.0
# The slope is the weaker signal: it stays within twice the spread of the profiles.
HELD_TOKEN_S_MAX: Final = 4 * PRIOR_HELD_TOKEN_S
# If more than this share of the time was other prompts' prefill, the rest is too uncertain.
OTHERS_MAX: Final = 0.5
# In shorter streams the uncertain ends of the steps are too large a share.
STEPS_MIN: Final = 16


def prior_s(held_tokens: float) -> float:
    """The time of a step before anything is known."""
    return PRIOR_STEP_S + PRIOR_HELD_TOKEN_S * held_tokens


class DecodeSpeed:
    """Seconds between two tokens, as a function of the tokens held."""

    __slots__ = ("_fit", "recent")

    def __init__(self) -> None:
        self.recent = RecentPace()
        self._fit = FairFit(
            (PRIOR_STEP_S, PRIOR_HELD_TOKEN_S),
            (TRUST / PRIOR_STEP_S**2, TRUST / PRIOR_HELD_TOKEN_S**2),
            fade=FADE,
            surprise_max=SURPRISE_MAX,
            least=1e-6,
        )

    @property
    def step_s(self) -> float:
        """The time of a step without held tokens."""
        return self._fit.a

    @property
    def held_token_s(self) -> float:
        """The time that each held token adds to a step."""
        return min(self._fit.b, HELD_TOKEN_S_MAX)

    def itl_s(self, held_tokens: float) -> float:
        """The time from one token to the next with this many held tokens."""
        return self.step_s + self.held_token_s * held_tokens

    @property
    def pace(self) -> float:
        """How many times as long as the prior a step takes."""
        held_tokens = self.usual_held_tokens
        return self.itl_s(held_tokens) / prior_s(held_tokens)

    @property
    def weight(self) -> float:
        """The total weight of its samples. Old ones weigh less."""
        return self._fit.weight

    @property
    def usual_held_tokens(self) -> float:
        """The mean of held tokens while it was measured."""
        return self._fit.mean_b

    def observe(
        self,
        steps: int,
        seconds: float,
        prefill_s: float,
        held_tokens: float,
        client: str = "",
        now_s: float = 0.0,
    ) -> None:
        """Learn from a client's stream. `prefill_s` of its time was other prompts' prefill."""
        if steps >= STEPS_MIN:
            # Estimated prefill may exceed the real one: a step keeps at least a tenth of the time.
            prefill_s = min(prefill_s, 0.9 * seconds)
            slower = (seconds - prefill_s) / steps / prior_s(held_tokens)
            if prefill_s <= OTHERS_MAX * seconds:
                self.recent.observe(slower, client)
            if not self.recent.is_odd(slower):
                step_s, rest_s = seconds / steps, prefill_s / steps
                self._fit.observe((1.0, held_tokens), step_s, rest_s, client, now_s)

    def observe_whole(
        self,
        steps: int,
        seconds: float,
        rest_s: float,
        held_tokens: float,
        client: str = "",
        now_s: float = 0.0,
    ) -> None:
        """Learn from an answer without a stream. `rest_s` of its time was not decoding."""
        if steps >= STEPS_MIN:
            step_s, rest_s = seconds / steps, rest_s / steps
            self._fit.observe((1.0, held_tokens), step_s, rest_s, client, now_s)

    def forget(self) -> None:
        """The measurement is old: let the next few samples outweigh it."""
        self._fit.forget(LONG_AGO)
        self.recent.forget()
