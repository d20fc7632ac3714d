"""How fast backends are beside each other, as far as that can be told.

Each has two numbers of its own, seconds a unit of prefill work and seconds of a step, and each of
them alone is known badly: of prompts that are mostly cached the first hardly shows. What they say
together of an ordinary request is known well, so backends are compared by that. Two measurements
of equal engines still differ by some percent, which times hundreds of decode steps would outweigh
all there is to gain, and of equal idle engines one would get all requests: so those that lie no
further apart than ALIKE are as fast as each other. One that little is known of, or nothing
new, is as fast as the mean, or it would never be tried.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from balancing.backend import Backend

# Two equal engines that answer in milliseconds measured up to 40 % apart on a busy machine; GPUs of
# two generations are apart by a factor of two or more.
ALIKE: Final = 0.5
# Fewer may all be of one bad moment: the connects of a start, a burst.
SAMPLES_MIN: Final = 32


class Speeds(NamedTuple):
    """Seconds a unit of prefill work: the mean's, which counts for all that `apart` lacks."""

    mean_s: float
    apart: dict[Backend, float]


def compare(backends: Sequence[Backend], ordinary_s: float, now_s: float) -> Speeds:
    """How fast each is; `ordinary_s` is what an ordinary request's prefill takes.

    Groups begin with the fastest that belongs to none and take whoever is at most ALIKE slower.
    Equals are given the same number, not one that rounding made another.
    """
    known = [
        each
        for each in backends
        if each.prefill_speed.samples >= SAMPLES_MIN and each.measured(now_s)
    ]
    told = known or backends
    mean_s = sum([each.prefill_speed.work_s for each in told], 0.0) / len(told)
    work = ordinary_s / mean_s
    takes_s = [each.prefill_speed.step_s + work * each.prefill_speed.work_s for each in known]
    if not known or max(takes_s) <= min(takes_s) * (1.0 + ALIKE):
        return Speeds(mean_s, {})
    whole_s = sum(takes_s, 0.0) / len(takes_s)
    ordered = sorted(zip(takes_s, known, strict=True), key=itemgetter(0))
    apart: dict[Backend, float] = {}
    begin = 0
    while begin < len(ordered):
        limit_s, end, sum_s = ordered[begin][0] * (1.0 + ALIKE), begin, 0.0
        while end < len(ordered) and ordered[end][0] <= limit_s:
            sum_s += ordered[end][0]
            end += 1
        for _, backend in ordered[begin:end]:
            apart[backend] = mean_s * sum_s / (end - begin) / whole_s
        begin = end
    return Speeds(mean_s, apart)
