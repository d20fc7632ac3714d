"""Time to first token, for policies that compare it."""

from math import exp
from typing import Final

# Finagle's Peak EWMA decays over 10 s: about the time a burst takes to pass.
LATENCY_TAU_S: Final = 10.0


class PeakEwma:
    """Latency that rises at once and decays: Finagle's Peak EWMA, read without mutation."""

    __slots__ = ("at_s", "value_s")

    def __init__(self) -> None:
        self.value_s = 0.0
        self.at_s = 0.0

    def observe(self, sample_s: float, now_s: float) -> None:
        decayed = exp(-max(0.0, now_s - self.at_s) / LATENCY_TAU_S)
        average = self.value_s * decayed + sample_s * (1.0 - decayed)
        self.value_s = max(sample_s, average)
        self.at_s = now_s

    def read(self, now_s: float) -> float:
        return self.value_s * exp(-max(0.0, now_s - self.at_s) / LATENCY_TAU_S)
