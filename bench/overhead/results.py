"""What was measured: per metric and subject, one value a round."""

from statistics import median

DIRECT = "direct"


class Results:
    """Values by metric and subject (a peer, or `direct`: no peer between)."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}
        self.faults: list[str] = []
        self.faulty: set[str] = set()
        """The subjects that had a fault."""
        self.saturated: list[str] = []

    def fault(self, metric: str, subject: str, what: str) -> None:
        self.faults.append(f"{metric} through {subject}: {what}")
        self.faulty.add(subject)

    def add(self, metric: str, subject: str, value: float) -> None:
        self.values.setdefault(metric, {}).setdefault(subject, []).append(value)

    def rounds(self, metric: str, subject: str) -> list[float]:
        return self.values.get(metric, {}).get(subject, [])

    def median(self, metric: str, subject: str) -> float | None:
        values = self.rounds(metric, subject)
        return median(values) if values else None

    def ratio(self, metric: str, subject: str, other: str) -> float | None:
        """The quotient of the medians; None when either lacks, or there is nothing to divide by."""
        above, below = self.median(metric, subject), self.median(metric, other)
        return above / below if above is not None and below is not None and below > 0 else None
