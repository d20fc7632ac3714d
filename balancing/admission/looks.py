"""Which looks at what waits would find nothing: they are left out or come last."""

from penstock.balancing.admission.ticket import Flow
from penstock.balancing.backend import Backend


class Looks:
    """The looks of one line that have found nothing of late."""

    __slots__ = ("_futile", "_futile_until_s", "_resting", "_resting_short")

    def __init__(self) -> None:
        # The last wake that sent nothing. Until then another finds the same, with these open.
        self._futile_until_s = 0.0
        self._futile: frozenset[Backend] = frozenset()
        self._resting: dict[tuple[Flow, int], float] = {}  # until when flows are looked at last
        self._resting_short: dict[tuple[Flow, int], float] = {}  # the same for short prompts

    def renew(self) -> None:
        """What waits or the room for it has changed: the next look may find some."""
        self._futile_until_s = 0.0

    def futile(self, opened: frozenset[Backend], until_s: float) -> None:
        """A look has sent nothing. These were open."""
        self._futile, self._futile_until_s = opened, until_s

    def is_futile(self, opened: frozenset[Backend], now_s: float) -> bool:
        """Whether another look at what waits finds nothing. `opened`: the backends that are."""
        return not opened or (now_s < self._futile_until_s and opened <= self._futile)

    def rest(self, flow: Flow, rank: int, until_s: float) -> None:
        """One of its requests found no room. Until then others are looked at first."""
        self._resting[flow, rank] = max(until_s, self._resting.get((flow, rank), 0.0))

    def resting(self, rank: int, now_s: float) -> set[Flow]:
        """The flows of a class that are looked at last."""
        if not self._resting:
            return set()
        self._resting = {each: at for each, at in self._resting.items() if at > now_s}
        return {flow for flow, of in self._resting if of == rank}

    def rest_short(self, flow: Flow, rank: int, until_s: float) -> None:
        """Its short prompts found no room, and others had no look. These come first until then."""
        self._resting_short[flow, rank] = until_s

    def resting_short(self, rank: int, now_s: float) -> dict[Flow, float]:
        """The flows of a class whose short prompts are looked at last, and until when."""
        if not self._resting_short:
            return {}
        resting = {each: at for each, at in self._resting_short.items() if at > now_s}
        self._resting_short = resting
        return {flow: at for (flow, of), at in resting.items() if of == rank}
