"""How many times as long as its peers each backend takes."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.slowness import compare

# The prefill of an ordinary prompt, about 2,000 tokens.
ORDINARY_S: Final = 0.1


def slower(backends: Sequence[Backend], now_s: float) -> dict[Backend, float]:
    """Over the median of the others, in prefill or in decoding, whichever is worse.

    1.0 where too little is known.
    """
    if len(backends) < 2:
        return dict.fromkeys(backends, 1.0)
    speeds = compare(backends, ORDINARY_S, now_s)
    prefill = {each: speeds.apart.get(each, (speeds.mean_s, 1.0))[0] for each in backends}
    decode = {each: speeds.apart.get(each, (speeds.mean_s, 1.0))[1] for each in backends}
    return {each: max(_over_others(each, prefill), _over_others(each, decode)) for each in backends}


def _over_others(backend: Backend, paces: dict[Backend, float]) -> float:
    usual = median([pace for each, pace in paces.items() if each is not backend])
    return paces[backend] / usual if usual else 1.0
