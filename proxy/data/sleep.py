"""Whether the process itself was asleep. Then nobody is to blame for a silence."""

from math import inf
from typing import Final

# For this time after a sleep, failures are nobody's fault: peers that gave up waiting for the
# process are found in the first moments.
EXCUSED_S: Final = 5.0


class Sleep:
    """When the process last woke up."""

    __slots__ = ("_woke_s",)

    def __init__(self) -> None:
        self._woke_s = -inf

    def is_over(self, now_s: float) -> None:
        """The process runs again."""
        self._woke_s = now_s

    def excuses(self, began_s: float, now_s: float) -> bool:
        """Whether the sleep may be why something that began then has failed now."""
        return began_s < self._woke_s and now_s - self._woke_s < EXCUSED_S
