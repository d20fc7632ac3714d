"""What a failure costs its backend: for a while it looks as if it had work queued.

A backend that fails within a millisecond always holds the least load, so every
policy that reads loads would send it everything that comes. A penalty makes a
failure as dear as the work it pretends to have done. It is no part of the
ledger: an idle backend holds nothing, penalised or not.
"""

from typing import Final

# The base of Linkerd's load biaser: about what a client loses by a failure.
PENALTY_S: Final = 5.0
# Failures in a row add up, so that a backend which only fails is tried ever more
# rarely; by this many it is ejected too, where its pool can spare it.
ROW_MAX: Final = 5
# A hint of the backend's own counts as it is up to here; by then probes know more.
HINT_S_MAX: Final = 60.0


class Penalty:
    """Seconds of work that a backend looks to have; they pass as work would, one a second."""

    __slots__ = ("until_s",)

    def __init__(self) -> None:
        self.until_s = 0.0

    def charge(self, now_s: float, *, in_row: int = 1, hint_s: float = 0.0) -> None:
        """Charge a failure, the `in_row`th one, or what the backend's Retry-After hints."""
        seconds = min(hint_s, HINT_S_MAX) or PENALTY_S * max(1, min(in_row, ROW_MAX))
        self.until_s = max(self.until_s, now_s + seconds)

    def forgive(self) -> None:
        """It has proved that it generates: what it may take now is slow start's to say."""
        self.until_s = 0.0

    def read(self, now_s: float) -> float:
        """Seconds still to go, 0.0 for most."""
        left_s = self.until_s - now_s
        return left_s if left_s > 0.0 else 0.0
