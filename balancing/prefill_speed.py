"""How fast a backend prefills, learnt from times to first token.

A sample is the work in the queue before a request, with its own prompt, and the time that it took.
Both are in *work*: tokens weighed by what they attend to. A token after n others costs 1 + n /
ATTENDED_TOKENS. Two numbers are fitted: seconds for a unit of work, and seconds for a step that
every request pays. With only one of them, prompts that are nearly all in the cache would make a
fast engine look slow.
"""

from typing import Final

from penstock.balancing.fair_fit import FairFit
from penstock.balancing.recent_pace import RecentPace

# Attention to this many tokens costs as much as all other work for a token: 40,700 for a 70B model
# on four H100, 16,500 for an 8B on one, 22,900 and 43,000 on A100 (bench/sim/profiles.py).
ATTENDED_TOKENS: Final = 32_000.0
# Before anything is known: 15,000 tokens/s and a step of 20 ms, worth a third of a sample. (A 70B
# on four H100 has 15,000 tokens/s, an 8B on one 46,000, a 70B on four A100 5,600.)
PRIOR_WORK_PER_S: Final = 15_000.0
PRIOR_STEP_S: Final = 0.020
TRUST: Final = 0.3
# Each sample fades the earlier ones: about the last two hundred count.
FADE: Final = 0.995
# The share to forget: of two hundred samples ten are left.
LONG_AGO: Final = 0.95
SURPRISE_MAX: Final = 3.0
# No engine is faster than a hundred times the prior.
WORK_PER_S_MAX: Final = 100 * PRIOR_WORK_PER_S


def work_of(tokens: float, context: float, prompts: int = 1) -> float:
    """The work of the last `tokens` tokens of `prompts` prompts of `context` tokens each."""
    return tokens * (1.0 + (context - tokens / (2 * prompts)) / ATTENDED_TOKENS)


def prior_s(work: float) -> float:
    """The time for this work before anything is known."""
    return work / PRIOR_WORK_PER_S + PRIOR_STEP_S


class PrefillSpeed:
    """`work_s`: seconds for a unit of work."""

    __slots__ = ("_fit", "recent", "work_s")

    def __init__(self) -> None:
        prior = (1.0 / PRIOR_WORK_PER_S, PRIOR_STEP_S)
        self.work_s = prior[0]
        self.recent = RecentPace()
        self._fit = FairFit(
            prior,
            (TRUST / prior[0] ** 2, TRUST / prior[1] ** 2),
            fade=FADE,
            surprise_max=SURPRISE_MAX,
            least=1e-6,
        )

    @property
    def work_per_s(self) -> float:
        """Work in a second. For short prompts these are tokens in a second."""
        return 1.0 / self.work_s

    @property
    def step_s(self) -> float:
        """Seconds that every first token takes, however short its prompt."""
        return self._fit.b

    @property
    def samples(self) -> int:
        """How many requests taught it."""
        return self._fit.samples

    @property
    def weight(self) -> float:
        """The total weight of the samples. Old ones weigh less."""
        return self._fit.weight

    def expect_s(self, work: float) -> float:
        """The expected time for this work."""
        return self.work_s * work + self._fit.b

    def is_odd(self, ordinary_s: float) -> bool:
        """Whether the last answers show that it is much faster than was fitted."""
        work = ordinary_s * PRIOR_WORK_PER_S
        return self.recent.is_odd(self.expect_s(work) / prior_s(work))

    def observe(self, work: float, seconds: float, client: str = "", now_s: float = 0.0) -> None:
        """A client's `work` was done `seconds` after it was sent. `recent` knows this already."""
        if self.recent.is_odd_to_all(seconds / prior_s(work)):
            return
        self._fit.observe((work, 1.0), seconds, 0.0, client, now_s)
        self.work_s = max(1.0 / WORK_PER_S_MAX, self._fit.a)

    def observe_whole(
        self, work: float, seconds: float, rest_s: float, client: str = "", now_s: float = 0.0
    ) -> None:
        """Learn from a client's answer of which `rest_s` should have been other than prefill."""
        self._fit.observe((work, 1.0), seconds, rest_s, client, now_s)
        self.work_s = max(1.0 / WORK_PER_S_MAX, self._fit.a)

    def forget(self) -> None:
        """The measurement is old: let the next few samples outweigh it."""
        self._fit.forget(LONG_AGO)
        self.recent.forget()
