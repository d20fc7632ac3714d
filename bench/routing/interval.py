"""The 95 % interval of a mean over few seeds."""

import statistics
from collections.abc import Sequence
from typing import Final

# Quantiles of Student's t at 97.5 %, by degrees of freedom, and beyond them.
STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
BEYOND: Final = 2.23  # of ten; less with more


def half_width(values: Sequence[float]) -> float:
    """Half of the interval; 0.0 of a single value, of which nothing is known."""
    freedom = len(values) - 1
    if not freedom:
        return 0.0
    student = STUDENT[freedom - 1] if freedom <= len(STUDENT) else BEYOND
    half: float = student * statistics.stdev(values) / len(values) ** 0.5
    return half
