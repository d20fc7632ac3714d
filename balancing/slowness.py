"""How fast backends are beside each other, as far as that can be told.

Prefill and decoding are compared apart: a server may be slow in one of them. Each has two fitted
numbers, and each of them alone is known badly: of prompts that are mostly cached, seconds a unit
of work hardly show. What they say together of an ordinary request is known well, so backends are
compared by that. Two measurements of equal engines still differ by some percent, which times
hundreds of decode steps would outweigh all there is to gain, and of equal idle engines one would
get all requests: so those that lie no further apart than ALIKE are as fast as each other. One that
little is known of, or nothing new, is as fast as the mean, or it would never be tried.

One exception: where the last few answers of a backend, the quicker ones even, took SEVERAL times
what is usual among its peers, it is that much slower, before anything is fitted.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from balancing.backend import Backend
from balancing.prefill_speed import FADE
from balancing.recent_pace import QUICKEST, RecentPace

# Two equal engines that answer in milliseconds measured up to 40 % apart on a busy machine; GPUs of
# two generations are apart by a factor of two or more.
ALIKE: Final = 0.5
# Fewer may all be of one bad moment: the connects of a start, a burst.
SAMPLES_MIN: Final = 32
WEIGHT_MIN: Final = 0.999 * (1.0 - FADE**SAMPLES_MIN) / (1.0 - FADE)
# By a few answers, of other sizes than those of the peers and beside other load, equals are seen up
# to twice as slow as each other.
SEVERAL: Final = 3.0
# Of what is usual among the peers: how many of its answers are long enough to show its decoding.
ANSWERS_MIN: Final = 0.2


class Speeds(NamedTuple):
    """Seconds a unit of prefill work and of decoding: the mean's, which count for all that `apart`
    lacks; `apart` has seconds a unit of work, and how many times as long a step takes.

    `tried`: what is known of these is too little, or too old, beside others of which more is.
    """

    mean_s: float
    step_s: float
    held_token_s: float
    apart: dict[Backend, tuple[float, float]]
    tried: frozenset[Backend]


def compare(backends: Sequence[Backend], ordinary_s: float, now_s: float) -> Speeds:
    """How fast each is; `ordinary_s` is what an ordinary request's prefill takes."""
    measured = [each for each in backends if each.measured(now_s)]
    believed = _of_several(measured)
    slow = _slow(believed, _prefills)
    known = [
        each
        for each in _generating(believed)
        if each.prefill_speed.weight >= WEIGHT_MIN
        and each not in slow
        and not each.prefill_speed.is_odd(ordinary_s)
    ]
    told = known or [each for each in backends if each not in slow] or backends
    mean_s = sum([each.prefill_speed.work_s for each in told], 0.0) / len(told)
    work = ordinary_s / mean_s
    prefill = _grouped(known, [each.prefill_speed.expect_s(work) for each in known])
    prefill.update(slow)

    slow = _slow(believed, _decodes)
    known = _believable(
        [each for each in believed if each.decode_speed.weight >= WEIGHT_MIN and each not in slow]
    )
    told = known or [each for each in backends if each not in slow] or backends
    step_s = sum([each.decode_speed.step_s for each in told], 0.0) / len(told)
    held_token_s = sum([each.decode_speed.held_token_s for each in told], 0.0) / len(told)
    held = sum([each.decode_speed.usual_held_tokens for each in told], 0.0) / len(told)
    decode = dict.fromkeys(known, 1.0)
    decode.update(_grouped(known, [each.decode_speed.itl_s(held) for each in known]))
    decode.update(slow)

    apart = {}
    for each in backends:
        slower = prefill.get(each, 1.0)
        # Of a backend that is slow in the one and unknown in the other, the same is likely.
        paces = slower, decode.get(each, slower)
        if paces != (1.0, 1.0):
            apart[each] = mean_s * paces[0], paces[1]
    return Speeds(mean_s, step_s, held_token_s, apart, _tried(backends, measured))


def _of_several(backends: list[Backend]) -> list[Backend]:
    """Those whose last answers were not all one client's, where there are several: what a client
    asks for may be slow wherever it is asked."""
    clients = [each.prefill_speed.recent.clients for each in backends]
    if len(set().union(*clients)) < 2:
        return backends
    return [each for each, whose in zip(backends, clients, strict=True) if len(whose) > 1]


def _prefills(backend: Backend) -> RecentPace:
    return backend.prefill_speed.recent


def _decodes(backend: Backend) -> RecentPace:
    return backend.decode_speed.recent


def _slow(
    backends: Sequence[Backend], recent_of: Callable[[Backend], RecentPace]
) -> dict[Backend, float]:
    """Those that are several times slower than usual, by their last answers; and how many times.

    Usual is the lower median: of three or more, one that is quick beyond belief does not make the
    others look slow; of two it makes the other look so by its QUICKEST at most.
    """
    recent = [(each, pace) for each in backends if (pace := recent_of(each)).enough]
    if len(recent) < 2:
        return {}
    usual = sorted([pace.usual for _, pace in recent])[(len(recent) - 1) // 2]
    return {each: pace.quick / usual for each, pace in recent if pace.quick > SEVERAL * usual}


def _generating(backends: Sequence[Backend]) -> list[Backend]:
    """Those that decode about as often as their peers do, of what they prefill.

    First tokens that come at once, and little after them, are no sign of a fast engine.
    """
    decode = [each.decode_speed.weight / (1.0 + each.prefill_speed.weight) for each in backends]
    usual = sorted(decode)[(len(decode) - 1) // 2] if decode else 0.0
    return [
        each for each, share in zip(backends, decode, strict=True) if share >= usual * ANSWERS_MIN
    ]


def _believable(backends: list[Backend]) -> list[Backend]:
    """Those without the few that decode quicker than engines do: streams without work behind them.

    Where half of them are as quick, as small models are, it is to be believed.
    """
    paces = [each.decode_speed.pace for each in backends]
    if not paces or sorted(paces)[len(paces) // 2] < QUICKEST:
        return backends
    return [each for each, pace in zip(backends, paces, strict=True) if pace >= QUICKEST]


def _tried(backends: Sequence[Backend], believed: Sequence[Backend]) -> frozenset[Backend]:
    known = {each for each in believed if each.prefill_speed.recent.enough}
    return frozenset(backends) - known if known else frozenset()


def _grouped(known: Sequence[Backend], takes_s: Sequence[float]) -> dict[Backend, float]:
    """How many times as long as the mean each takes; nothing where all are alike.

    Groups begin with the fastest that belongs to none and take whoever is at most ALIKE slower.
    Equals are given the same number, not one that rounding made another.
    """
    if not known or max(takes_s) <= min(takes_s) * (1.0 + ALIKE):
        return {}
    whole_s = sum(takes_s, 0.0) / len(takes_s)
    ordered = sorted(zip(takes_s, known, strict=True), key=itemgetter(0))
    slower: dict[Backend, float] = {}
    begin = 0
    while begin < len(ordered):
        limit_s, end, sum_s = ordered[begin][0] * (1.0 + ALIKE), begin, 0.0
        while end < len(ordered) and ordered[end][0] <= limit_s:
            sum_s += ordered[end][0]
            end += 1
        for _, backend in ordered[begin:end]:
            slower[backend] = sum_s / (end - begin) / whole_s
        begin = end
    return slower
