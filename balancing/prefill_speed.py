"""How fast a backend prefills, learnt from the time to its first tokens.

A sample is what a request had before it, its own prompt included, and how long that took. Both are
in *work*, tokens weighed by what they attend to: a token after n others costs 1 + n /
ATTENDED_TOKENS. Two numbers are fitted, seconds a unit of work and seconds of a step that any
request pays: with one of them alone, prompts that are all in the cache but for their end would make
a fast engine look slow.
"""

from typing import Final

from balancing.least_squares import LeastSquares
from balancing.recent_pace import RecentPace

# Attention to this many tokens costs as much as everything else of a token: 40,700 for a 70B model
# on four H100, 16,500 for an 8B on one, 22,900 and 43,000 on A100 (bench/sim/profiles.py).
ATTENDED_TOKENS: Final = 32_000.0
# Before anything is known: 15,000 tokens/s (70B on four H100; 46,000 are 8B on one, 5,600 70B on
# four A100) and a step of 20 ms; worth a third of a sample.
PRIOR_WORK_PER_S: Final = 15_000.0
PRIOR_STEP_S: Final = 0.020
TRUST: Final = 0.3
# Each sample fades the ones before: about the last two hundred count.
FADE: Final = 0.995
# Of two hundred samples ten are left.
LONG_AGO: Final = 0.95
SURPRISE_MAX: Final = 3.0
# No engine is faster than a hundred times the prior.
WORK_PER_S_MAX: Final = 100 * PRIOR_WORK_PER_S


def work_of(tokens: float, context: float, prompts: int = 1) -> float:
    """Work of the last `tokens` of prompts of `context` tokens each, so many of them."""
    return tokens * (1.0 + (context - tokens / (2 * prompts)) / ATTENDED_TOKENS)


def prior_s(work: float) -> float:
    """What so much work takes before anything is known."""
    return work / PRIOR_WORK_PER_S + PRIOR_STEP_S


class PrefillSpeed:
    """`work_s`: seconds a unit of work."""

    __slots__ = ("_fit", "recent", "work_s")

    def __init__(self) -> None:
        prior = (1.0 / PRIOR_WORK_PER_S, PRIOR_STEP_S)
        self.work_s = prior[0]
        self.recent = RecentPace()
        self._fit = LeastSquares(
            prior,
            (TRUST / prior[0] ** 2, TRUST / prior[1] ** 2),
            fade=FADE,
            surprise_max=SURPRISE_MAX,
            least=1e-6,
            keep=FADE,
        )

    @property
    def work_per_s(self) -> float:
        """Work a second: tokens a second of short prompts."""
        return 1.0 / self.work_s

    @property
    def step_s(self) -> float:
        """Seconds that a first token takes however short its prompt."""
        return self._fit.b

    @property
    def samples(self) -> int:
        """How many requests taught it."""
        return self._fit.samples

    @property
    def weight(self) -> float:
        """What they are worth, the old ones less."""
        return self._fit.weight

    def expect_s(self, work: float) -> float:
        """What so much work takes."""
        return self.work_s * work + self._fit.b

    def is_odd(self, ordinary_s: float) -> bool:
        """Whether the last answers show that it is much quicker than what was fitted."""
        work = ordinary_s * PRIOR_WORK_PER_S
        return self.recent.is_odd(self.expect_s(work) / prior_s(work))

    def observe(self, work: float, seconds: float) -> None:
        """`work` was done `seconds` after it had been sent, and `recent` knows of it."""
        if self.recent.is_odd(seconds / prior_s(work)):
            return
        self._fit.observe((work, 1.0), seconds)
        self.work_s = max(1.0 / WORK_PER_S_MAX, self._fit.a)

    def observe_whole(self, work: float, seconds: float, rest_s: float) -> None:
        """The same, where `rest_s` of the time should have been something else."""
        self._fit.observe((work, 1.0), seconds, rest_s)
        self.work_s = max(1.0 / WORK_PER_S_MAX, self._fit.a)

    def forget(self) -> None:
        """It was long ago: the next few samples outweigh it."""
        self._fit.forget(LONG_AGO)
        self.recent.forget()
