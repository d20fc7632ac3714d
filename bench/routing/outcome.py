"""What a run is judged by: first tokens, gaps, whole answers, goodput, cache hits, balance."""

import statistics
from collections.abc import Sequence
from math import ceil
from typing import Final

from penstock.bench.routing.trace import Arrival

# A request is good when its first token came within this and its tokens, in the mean, within that.
GOOD_TTFT_S: Final = 5.0
GOOD_TPOT_S: Final = 0.1
# Quantiles of Student's t at 97.5 %, by degrees of freedom, and beyond them.
STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
BEYOND: Final = 2.23  # of ten; less with more


class Outcome:
    """Samples of one run, over `backends` engines."""

    def __init__(self, backends: int) -> None:
        self.ttft_s: list[float] = []
        self.e2e_s: list[float] = []
        self.gaps_s: list[float] = []
        self._good = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._sent_tokens = [0] * backends

    def sent(self, backend: int, tokens: int) -> None:
        """Requests of so many tokens, prompts and answers, went there."""
        self._sent_tokens[backend] += tokens

    def gap(self, seconds: float) -> None:
        """Between two tokens of a stream."""
        self.gaps_s.append(seconds)

    def add(self, arrival: Arrival, ttft_s: float, end_s: float, cached_tokens: int) -> None:
        """A whole answer."""
        e2e_s = end_s - arrival.at_s
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(e2e_s)
        tpot_s = (e2e_s - ttft_s) / max(1, arrival.output_tokens - 1)
        self._good += ttft_s <= GOOD_TTFT_S and tpot_s <= GOOD_TPOT_S
        self._prompt_tokens += arrival.prompt_tokens
        self._cached_tokens += cached_tokens

    def figures(self) -> dict[str, float]:
        """The figures of a cell, by the names of the published JSON."""
        return {
            "ttft_mean_s": statistics.fmean(self.ttft_s),
            **{f"ttft_p{n}_s": quantile(self.ttft_s, n / 100) for n in (50, 90, 99)},
            "itl_p99_s": quantile(self.gaps_s, 0.99),
            "e2e_mean_s": statistics.fmean(self.e2e_s),
            "e2e_p99_s": quantile(self.e2e_s, 0.99),
            "goodput": self._good / len(self.ttft_s),
            "hit_rate": self._cached_tokens / self._prompt_tokens,
            "imbalance": imbalance(self._sent_tokens),
            "jain": jain(self._sent_tokens),
        }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed; 0.0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def imbalance(loads: Sequence[float]) -> float:
    """The largest load over the mean."""
    return max(loads) / (sum(loads) / len(loads))


def jain(loads: Sequence[float]) -> float:
    """Jain's fairness index: 1.0 when all are equal, 1/n when one has all."""
    squares = sum(load * load for load in loads)
    return sum(loads) ** 2 / (len(loads) * squares)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean; 0.0 of a single value, of which nothing is known."""
    freedom = len(values) - 1
    if not freedom:
        return 0.0
    student = STUDENT[freedom - 1] if freedom <= len(STUDENT) else BEYOND
    half: float = student * statistics.stdev(values) / len(values) ** 0.5
    return half
