"""How fast backends are relative to each other, as far as can be told.

Prefill and decode are compared separately, because a server may be slow in only one of them. Each
has two fitted numbers. One number alone is uncertain: with mostly cached prompts the seconds for a
unit of work hardly show. The time that both give for an ordinary request is certain, so backends
are compared by it. Two measurements of equal engines still differ by some percent. Over hundreds of
decode steps that would outweigh everything else, and one of several equal idle engines would get
all requests. So backends that differ by no more than ALIKE_SHARE count as equally fast. A backend
with few or only old samples counts as fast as the mean, or it would never be tried.

One exception: if even the faster ones of a backend's last few answers took SEVERAL times what is
usual among its peers, it counts as that much slower before anything is fitted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, inf
from operator import itemgetter
from statistics import median
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.balancing.backend import Backend
from penstock.balancing.speed.estimates import FADE, KEPT, QUICKEST, RecentPace

# Two equal engines that answer in milliseconds measured up to 40 % apart on a busy machine. GPUs of
# two generations differ by a factor of two or more.
ALIKE_SHARE: Final = 0.5
# Fewer may all come from one bad moment: the connects of a start, a burst.
SAMPLES_MIN: Final = 32
WEIGHT_MIN: Final = 0.999 * (1.0 - FADE**SAMPLES_MIN) / (1.0 - FADE)
# By a few answers, of different sizes and under different load, equal backends seem up to twice as
# slow as each other.
SEVERAL: Final = 3.0
# A backend that decodes less than this share of what is usual is not compared by its prefill.
ANSWERS_MIN: Final = 0.2
# The time of an ordinary request's prefill, where nobody has measured it.
ORDINARY_S: Final = 0.05
# The most backends in one comparison, which then takes 0.4 ms.
PEERS_MAX: Final = 32


class Speeds(NamedTuple):
    """Seconds for a unit of prefill work and for decoding. The means count for all backends not
    in `apart`, which has seconds for a unit of work, and how many times as long a step takes.

    `unknown`: backends of which too little is known, or only old samples, while others are known.
    """

    mean_s: float
    step_s: float
    held_token_s: float
    apart: dict[Backend, tuple[float, float]]
    unknown: frozenset[Backend]


class Pace(NamedTuple):
    """How many times as long as the median of its peers a backend takes, for an ordinary request's
    prefill and for a step."""

    prefill: float = 1.0
    decode: float = 1.0

    @property
    def slower(self) -> float:
        """The larger of both."""
        return max(self.prefill, self.decode)

    @property
    def slower_in(self) -> str:
        """Which of both that is."""
        return "prefill" if self.prefill >= self.decode else "decode"


# Of a backend that cannot be compared.
ALIKE: Final = Pace()


def compare(
    backends: Sequence[Backend],
    ordinary_s: float,
    now_s: float,
    open_paces: Mapping[Backend, RecentPace] = MappingProxyType({}),
) -> Speeds:
    """Compare the backends. `ordinary_s`: the time that an ordinary request's prefill takes.
    `open_paces`: how streams decode that have not ended, instead of the last that have."""
    measured = [each for each in backends if each.measured(now_s)]
    slow = _slow(measured, lambda each: each.prefill_speed.recent)
    known = [
        each
        for each in _generating(measured)
        if each.prefill_speed.weight >= WEIGHT_MIN
        and each not in slow
        and not each.prefill_speed.is_odd(ordinary_s)
    ]
    speeds = [each.prefill_speed for each in _told(backends, known, slow)]
    mean_s = sum([each.work_s for each in speeds]) / len(speeds)
    work = ordinary_s / mean_s
    prefill = _grouped(known, [each.prefill_speed.expect_s(work) for each in known]) | slow

    slow = _slow(measured, lambda each: open_paces.get(each, each.decode_speed.recent))
    known = _believable(
        [each for each in measured if each.decode_speed.weight >= WEIGHT_MIN and each not in slow]
    )
    decodes = [each.decode_speed for each in _told(backends, known, slow)]
    step_s = sum([each.step_s for each in decodes]) / len(decodes)
    held_token_s = sum([each.held_token_s for each in decodes]) / len(decodes)
    held = sum([each.usual_held_tokens for each in decodes]) / len(decodes)
    decode = dict.fromkeys(known, 1.0)
    decode |= _grouped(known, [each.decode_speed.itl_s(held) for each in known]) | slow

    apart = {}
    for each in backends:
        slower = prefill.get(each, 1.0)
        # A backend that is slow in one of them, and unknown in the other, is probably slow in both.
        paces = slower, decode.get(each, slower)
        if paces != (1.0, 1.0):
            apart[each] = mean_s * paces[0], paces[1]
    shown = {each for each in measured if each.prefill_speed.recent.enough}
    unknown = frozenset(backends) - shown if shown else frozenset()
    return Speeds(mean_s, step_s, held_token_s, apart, unknown)


def slower(
    backends: Sequence[Backend],
    now_s: float,
    open_paces: Mapping[Backend, RecentPace] = MappingProxyType({}),
) -> Iterator[tuple[Backend, Pace]]:
    """The backends of a pool that were measured lately, and how many times as long as the median of
    the others each of them takes. A slow one has long streams, so those that are open count.

    A comparison takes time by the square of their number. So in a large pool each is compared with
    some PEERS_MAX others, and the caller may pause between two groups. People are told, so who has
    given no more than a few answers since its start is left out: they may be of one bad moment.
    """
    known = [each for each in backends if has_answered(each) or each in open_paces]
    measured = [each for each in known if each.measured(now_s)]
    groups = ceil(len(measured) / PEERS_MAX)
    for number in range(groups):
        peers = measured[number::groups]  # neighbours may share what makes them slow
        speeds = compare(peers, ORDINARY_S, now_s, open_paces)
        usual = speeds.mean_s, 1.0
        paces = [speeds.apart.get(each, usual) for each in peers]
        prefill, decode = [each[0] for each in paces], [each[1] for each in paces]
        for place, each in enumerate(peers):
            yield each, Pace(_over_others(prefill, place), _over_others(decode, place))


def has_answered(backend: Backend) -> bool:
    """Whether it has given more than a few answers."""
    return max(backend.prefill_speed.samples, backend.decode_speed.samples) >= KEPT


def _over_others(paces: list[float], place: int) -> float:
    """The pace at this place over the median of the others. 1.0 if there are none."""
    others = paces[:place] + paces[place + 1 :]
    return paces[place] / median(others) if others else 1.0


def _told(
    backends: Sequence[Backend], known: Sequence[Backend], slow: Mapping[Backend, float]
) -> Sequence[Backend]:
    """The backends whose speeds make the mean."""
    return known or [each for each in backends if each not in slow] or backends


def _slow(
    backends: Sequence[Backend], recent_of: Callable[[Backend], RecentPace]
) -> dict[Backend, float]:
    """The backends whose last answers were several times slower than usual, and how many times.

    Usual is the lower median. Of three or more backends, one that is incredibly fast does not make
    the others look slow; of two it makes the other look slow by its QUICKEST at most. A client's
    requests may be slow everywhere. So if a backend serves one client alone, that client's own
    answers elsewhere must be faster, too.
    """
    recent = [each for each in backends if recent_of(each).enough]
    paces = [recent_of(each) for each in recent]
    only = [each.only_client for each in paces]
    usual_of = _usual_by_client(paces) if any(each is not None for each in only) else {}
    own = [usual_of[each] if each is not None else 0.0 for each in only]
    usuals = sorted([pace.usual for pace, its in zip(paces, own, strict=True) if its < inf])
    if len(usuals) < 2:
        return {}
    usual = usuals[(len(usuals) - 1) // 2]
    return {
        each: pace.quick / usual
        for each, pace, its in zip(recent, paces, own, strict=True)
        if pace.quick > SEVERAL * max(usual, its)
    }


def _usual_by_client(paces: Sequence[RecentPace]) -> dict[str, float]:
    """What is usual for each client: the lower median of its backends. inf if it uses one only."""
    found: dict[str, list[float]] = {}
    for pace in paces:
        for client, usual in pace.usual_by_client.items():
            found.setdefault(client, []).append(usual)
    return {
        client: sorted(usuals)[(len(usuals) - 1) // 2] if len(usuals) > 1 else inf
        for client, usuals in found.items()
    }


def _generating(backends: Sequence[Backend]) -> list[Backend]:
    """The backends that decode about as often as their peers, relative to what they prefill.

    First tokens that come at once, with little after them, are no sign of a fast engine.
    """
    decode = [each.decode_speed.weight / (1.0 + each.prefill_speed.weight) for each in backends]
    usual = sorted(decode)[(len(decode) - 1) // 2] if decode else 0.0
    return [
        each for each, share in zip(backends, decode, strict=True) if share >= usual * ANSWERS_MIN
    ]


def _believable(backends: list[Backend]) -> list[Backend]:
    """All but the few backends that decode faster than engines can: streams without real work.

    If half of them are as fast, as with small models, it is believed.
    """
    paces = [each.decode_speed.pace for each in backends]
    if not paces or sorted(paces)[len(paces) // 2] < QUICKEST:
        return backends
    return [each for each, pace in zip(backends, paces, strict=True) if pace >= QUICKEST]


def _grouped(known: Sequence[Backend], takes_s: Sequence[float]) -> dict[Backend, float]:
    """How many times as long as the mean each backend takes. Empty if all are alike.

    A group begins with the fastest backend that is in no group and takes all that are at most
    ALIKE_SHARE slower. Its members get exactly the same number.
    """
    if not known or max(takes_s) <= min(takes_s) * (1.0 + ALIKE_SHARE):
        return {}
    groups: list[list[tuple[float, Backend]]] = []
    for each in sorted(zip(takes_s, known, strict=True), key=itemgetter(0)):
        if not groups or each[0] > groups[-1][0][0] * (1.0 + ALIKE_SHARE):
            groups.append([])
        groups[-1].append(each)
    whole_s = sum(takes_s) / len(takes_s)
    slower: dict[Backend, float] = {}
    for group in groups:
        pace = sum([seconds for seconds, _ in group]) / len(group) / whole_s
        slower.update({backend: pace for _, backend in group})
    return slower
