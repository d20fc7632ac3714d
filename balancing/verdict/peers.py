"""How many times as long as its peers each backend takes."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.slowness import compare

# The prefill of an ordinary prompt, about 2,000 tokens.
ORDINARY_S: Final = 0.1
FEW: Final = 8


def slower(backends: Sequence[Backend], now_s: float) -> dict[Backend, float]:
    """Over the median of the others, in prefill or in decoding, whichever is worse.

    1.0 where too little is known.
    """
    if len(backends) < 2:
        return dict.fromkeys(backends, 1.0)
    speeds = compare(backends, ORDINARY_S, now_s)
    prefill = {each: speeds.apart.get(each, (speeds.mean_s, 1.0))[0] for each in backends}
    decode = {each: speeds.apart.get(each, (speeds.mean_s, 1.0))[1] for each in backends}
    usual_prefill, usual_decode = _usual(prefill), _usual(decode)
    return {
        each: max(prefill[each] / usual_prefill(each), decode[each] / usual_decode(each))
        for each in backends
    }


def _usual(paces: dict[Backend, float]) -> Callable[[Backend], float]:
    """The median of the others. Of many, one more or less does not change it."""
    if len(paces) <= FEW:
        return lambda backend: median([paces[each] for each in paces if each is not backend])
    usual = median(paces.values())
    return lambda backend: usual
