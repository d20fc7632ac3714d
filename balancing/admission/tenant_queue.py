"""What admission knows of one tenant: what waits, what it was given, and how long its answers are.

Clients without a key share queues by address. A queue knows what its requests asked for lately:
others are left room in proportion to that.
"""

from collections import deque
from math import exp
from typing import Final

from penstock.balancing.ask import Ask

# The mean of answers: about the last fifty count.
MEAN_SHARE: Final = 0.02
# The longest of this many last answers bounds the next one.
ANSWERS_KEPT: Final = 64
# An answer may have this many tokens, whatever the last ones had. A client's own limit may be a
# habit and no plan.
LONGEST_UNKNOWN: Final = 2_048.0
# An answer moves the mean as if it were at most this many times as long as the mean.
TIMES_MAX: Final = 8.0
# An answer that is longer than expected still has at least this part of the mean to come.
LEFT_MIN: Final = 0.25
# What was given, and what was asked for, is forgotten with these time constants.
LATELY_TAU_S: Final = 60.0
ASKED_TAU_S: Final = 1.0
# How many sizes of prompts are told apart in predictions.
SIZES: Final = 5


class Fading:
    """A sum of tokens that fades with time: of about the last `tau_s` seconds."""

    def __init__(self, tau_s: float) -> None:
        self._tau_s = tau_s
        self._tokens = self._at_s = 0.0

    def add(self, tokens: float, now_s: float) -> None:
        self._tokens = self.of(now_s) + tokens
        self._at_s = now_s

    def of(self, now_s: float) -> float:
        return self._tokens * exp(min(0.0, self._at_s - now_s) / self._tau_s)


class TenantQueue:
    """One tenant in one pool. `queues` and `queued_tokens` have an entry for each class.

    `served`: the tokens that it was given, divided by its weight (virtual token counters, Sheng et
    al., OSDI 2024).
    """

    def __init__(self, name: str, classes: int, weight: float = 1.0) -> None:
        self.name = name
        self.weight = weight
        self.served = 0.0
        self.given = Fading(LATELY_TAU_S)
        self.answers_given = Fading(LATELY_TAU_S)  # answers only, as far as they were expected
        self.asked = [Fading(ASKED_TAU_S) for _ in range(classes)]
        self.mean_tokens = 0.0  # of its answers. 0.0: unknown
        self.longest_tokens = 0.0  # of the last answers
        self.answers = 0  # how many were whole
        self.last: deque[float] = deque(maxlen=ANSWERS_KEPT)
        self.error = 0.0  # log of true over predicted waits, of all prompts
        self.errors = [0.0] * SIZES  # log of true over predicted waits, by size of the prompt
        self.queued_tokens = [0] * classes

    def reshape(self, classes: int) -> None:
        """There are other classes now. Nothing waits."""
        self.queued_tokens = [0] * classes
        self.asked = [Fading(ASKED_TAU_S) for _ in range(classes)]

    def answered(self, tokens: int) -> None:
        """One of its answers is over."""
        self.answers += 1
        share = max(MEAN_SHARE, 1.0 / self.answers)  # the first ones count more
        most = TIMES_MAX * self.mean_tokens if self.mean_tokens else float(tokens)
        self.mean_tokens += share * (min(most, float(tokens)) - self.mean_tokens)
        forgotten = self.last[0] if len(self.last) == ANSWERS_KEPT else 0.0
        self.last.append(float(tokens))
        if tokens >= self.longest_tokens:
            self.longest_tokens = float(tokens)
        elif forgotten >= self.longest_tokens:
            self.longest_tokens = max(self.last)

    def expect(self, ask: Ask) -> float:
        """How many tokens the answer to one of its requests will have, all choices together.

        The mean of its answers now, not what was expected when the request came. An answer takes
        seconds, and while answers grow that expectation is long out of date at its end.
        """
        if not ask.generates:
            return 0.0
        each = self.mean_tokens or ask.output_tokens
        if ask.max_tokens is not None and ask.max_tokens < each:
            each = float(ask.max_tokens)
        return each * ask.prompts * ask.choices

    def longest(self, ask: Ask) -> float:
        """The most tokens that the answer may have, all choices together."""
        if not ask.generates:
            return 0.0
        each = max(max(LONGEST_UNKNOWN, self.longest_tokens), ask.output_tokens)
        if ask.max_tokens is not None and ask.max_tokens < each:
            each = float(ask.max_tokens)
        return each * ask.prompts * ask.choices

    def left(self, ask: Ask, generated_tokens: float) -> float:
        """How many tokens of that answer are still to come, all choices together."""
        expected = self.expect(ask)
        left = max(expected - generated_tokens, LEFT_MIN * expected)
        if ask.max_tokens is None:
            return left
        most = float(ask.max_tokens * ask.prompts * ask.choices)
        return min(left, max(0.0, most - generated_tokens))

    def charge(self, tokens: float, now_s: float) -> None:
        """Count tokens that it was given. Negative ones give back what was charged too much."""
        self.served += tokens / self.weight
        self.given.add(tokens, now_s)
