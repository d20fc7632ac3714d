"""How much counters grew in the last two to three minutes. What is counted pays nothing for it.

Once a minute all counts are copied. The oldest of three copies is what the present ones are
compared with.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

COPY_S: Final = 60.0
COPIES: Final = 3


class Growth:
    """The growth of counters that `look` is told. Their number must have a limit."""

    __slots__ = ("_copies",)

    def __init__(self) -> None:
        self._copies: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=COPIES)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for another copy."""
        return not self._copies or now_s >= self._copies[-1][0] + COPY_S

    def look(self, counts: Mapping[str, int], now_s: float) -> None:
        """Keep a copy. The first one is that of the start, when nothing was counted."""
        self._copies.append((now_s, counts if self._copies else {}))

    def since(self, counts: Mapping[str, int]) -> dict[str, int]:
        """How much each has grown, the most first. Without those that have not."""
        before = self._copies[0][1] if self._copies else {}
        grown = {name: count - before.get(name, 0) for name, count in counts.items()}
        ordered = sorted(grown.items(), key=lambda each: -each[1])
        return {name: count for name, count in ordered if count > 0}
