"""Who goes to which target: shares of a line on which every key has one fixed place.

The second target grows from the left end of the line, the third one from the right end, further
ones from places in between. The first has all the rest. So points that move between the first and
another one move exactly these requests, as long as no two zones meet: with three targets they
never do. (No rule without memory does so between any two of three or more.) Points that move
between two of the others move up to twice as many. A target of weight 0 keeps its place.

All replicas compute the same, because only names and keys count. The hash is fast and its seed is
the route's name, so it hides nothing: who chooses its own key, such as a session, may compute which
keys go where. It could as well try some keys and look at the answers, twenty for a share of 5 %.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import xxhash

# The length of the line. Places on it are small integers in compiled code.
_LINE_BITS: Final = 60
LINE: Final = 1 << _LINE_BITS
# A float holds so many bits exactly.
_FLOAT_BITS: Final = 53
# Begin, end and owner.
_Zone = tuple[int, int, int]


def seed_of(name: str) -> int:
    """The seed of a hash. Places of different names have nothing to do with each other."""
    return xxhash.xxh3_64_intdigest(name.encode())


def place_of(key: str, seed: int) -> int:
    """The place of a key on the line."""
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"), seed) >> 4


def length_of(share: float) -> int:
    """The length of a share, 0 to 1, of the line."""
    return int(share * (1 << _FLOAT_BITS)) << (_LINE_BITS - _FLOAT_BITS)


class Split:
    """The line of one route, for `weights` of which one is above 0."""

    def __init__(self, route: str, weights: Sequence[float]) -> None:
        self._seed = seed_of(route)
        zones = _zones(weights)
        self._ends = [end for _, end, _ in zones]
        self._owners = [owner for _, _, owner in zones]

    @property
    def single(self) -> bool:
        """Whether all keys have one owner, so that none is needed."""
        return len(self._owners) == 1

    def owner(self, key: str) -> int:
        """The number of the target that a key belongs to."""
        if len(self._owners) == 1:
            return self._owners[0]
        return self._owners[bisect_right(self._ends, place_of(key, self._seed))]


def _zones(weights: Sequence[float]) -> list[_Zone]:
    """The line in order. The first target has what the others leave."""
    total = sum(weights)
    zones: list[_Zone] = [(0, LINE, 0)]
    last = 0
    for number, weight in enumerate(weights):
        if number and weight > 0:
            zones = _claimed(zones, number, length_of(weight / total))
            last = number
    if weights[0] <= 0:  # shares are rounded down: a crumb is left
        zones = [(begin, end, owner or last) for begin, end, owner in zones]
    joined: list[_Zone] = []
    for begin, end, owner in zones:
        if joined and joined[-1][2] == owner:
            joined[-1] = (joined[-1][0], end, owner)
        elif begin < end:
            joined.append((begin, end, owner))
    return joined


def _claimed(zones: list[_Zone], number: int, length: int) -> list[_Zone]:
    """With a zone for one more target, of what the first one has."""
    anchor = _anchor(number)
    cut: list[_Zone] = []
    for begin, end, owner in zones:
        if begin < anchor < end:
            cut += [(begin, anchor, owner), (anchor, end, owner)]
        else:
            cut.append((begin, end, owner))
    first = len([1 for begin, _, _ in cut if begin < anchor]) % len(cut)
    claimed: list[_Zone] = []
    for begin, end, owner in cut[first:] + cut[:first]:
        taken = min(length, end - begin) if owner == 0 else 0
        length -= taken
        if number == 2:  # from the right end, and of all that the second has left
            claimed += [(begin, end - taken, owner), (end - taken, end, number)]
        else:
            claimed += [(begin, begin + taken, number), (begin + taken, end, owner)]
    return sorted([(begin, end, owner) for begin, end, owner in claimed if begin < end])


def _anchor(number: int) -> int:
    """Where a target's zone begins: 1/2, 1/4, 3/4, 1/8, ... from the fourth target on."""
    if number < 3:
        return 0
    place, step, rest = 0, LINE >> 1, number - 2
    while rest:
        place += step * (rest & 1)
        step >>= 1
        rest >>= 1
    return place
