"""What an exporter tells of a backend's GPUs."""

from dataclasses import dataclass
from typing import Final

# A GPU that computes less than this share of the time counts as idle.
IDLE_UTILIZATION: Final = 0.1


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One scrape. Several GPUs: the mean of their utilisation, the sum of their memory.

    It counts until `until_s`. None: not told.
    """

    until_s: float
    utilization: float | None = None  # 0..1
    used_bytes: int | None = None
    free_bytes: int | None = None

    def idles(self, now_s: float) -> bool:
        """Whether the GPUs do hardly anything, as far as is known."""
        if self.utilization is None or now_s >= self.until_s:
            return False
        return self.utilization < IDLE_UTILIZATION
