"""What is late for one kind of request: the time that a quarter of the stable version's exceed.

It follows what it sees by steps (Robbins and Monro, 1951), in logarithms, so it needs no samples
kept and forgets old ones. It need not be exact: both versions are held against the same number, and
it is fixed before the requests that are compared.
"""

from typing import Final

LATE_SHARE: Final = 0.25
# The least step makes it follow a load that doubles within some thirty requests.
STEP: Final = 0.05
FIRST_STEP: Final = 0.5
SAMPLES_MIN: Final = 12


class Usual:
    """The time that a quarter exceeds, as a logarithm."""

    __slots__ = ("late_log", "samples")

    def __init__(self) -> None:
        self.late_log = 0.0
        self.samples = 0

    @property
    def known(self) -> bool:
        """Whether it has seen enough."""
        return self.samples >= SAMPLES_MIN

    def add(self, value_log: float) -> None:
        """One more time of the stable version."""
        if not self.samples:
            self.late_log = value_log
        step = max(STEP, FIRST_STEP / (1.0 + self.samples / 4))
        self.late_log += step * ((value_log > self.late_log) - LATE_SHARE)
        self.samples += 1
