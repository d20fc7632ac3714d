"""A consistent-hash ring: the backend to which a session belongs, and the ones after it.

Each name has points on a circle of 64 bits, in proportion to its weight. A key belongs to the
first point after its own. A name that joins takes keys only for itself, and one that leaves gives
up only its own keys, because the points of the others stay. Positions come from BLAKE2, so they
are the same in every process and after every restart (Python's `hash` is salted).
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import chain
from typing import Final

# Points at weight 1, or at the power of two below the largest weight. Shares then differ from the
# fair ones by 1/sqrt(256) = 6 % (standard deviation). ketama's 160 points give 8 %. Twice as many
# points would gain little.
POINTS: Final = 256
# The limit for all names, 10 bytes a point: 1,024 backends of weight 1.
POINTS_MAX: Final = 262_144
_DIGEST_POINTS: Final = 8  # a digest of 64 bytes makes eight points


class Ring:
    """The circle for `weights` by name. The order of the names does not matter."""

    __slots__ = ("_names", "_owners", "_points")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._names = sorted(weights)
        # Use powers of two, which a joining name seldom changes. If there are too many points,
        # halve them all instead of cutting some, so that weights keep their proportions.
        largest = int(max(weights.values(), default=1.0))
        each = POINTS / 2.0 ** max(0, largest.bit_length() - 1)
        while each > 1 and each * sum(weights.values()) > POINTS_MAX:
            each /= 2
        circle = sorted(
            (point, owner)
            for owner, name in enumerate(self._names)
            for point in _points_of(name, max(1, round(each * weights[name])))
        )
        self._points = array("Q", (point for point, _ in circle))
        self._owners = array("H", (owner for _, owner in circle))

    def __len__(self) -> int:
        return len(self._points)

    def home(self, key: str) -> str:
        """The name to which the key belongs. The ring must not be empty."""
        return next(self.walk(key))

    def walk(self, key: str) -> Iterator[str]:
        """Every name once, beginning with the key's own. The next one takes over from it."""
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        start = bisect_right(self._points, int.from_bytes(digest, "big"))
        seen: set[int] = set()
        for index in chain(range(start, len(self._owners)), range(start)):
            owner = self._owners[index]
            if owner not in seen:
                yield self._names[owner]
                seen.add(owner)
                if len(seen) == len(self._names):
                    return


def _points_of(name: str, count: int) -> Iterator[int]:
    """The first `count` points of a name. Fewer points are the beginning of more."""
    for block in range(-(-count // _DIGEST_POINTS)):
        digest = blake2b(f"{name}#{block}".encode()).digest()
        for point in range(min(_DIGEST_POINTS, count - block * _DIGEST_POINTS)):
            yield int.from_bytes(digest[8 * point : 8 * point + 8], "big")
