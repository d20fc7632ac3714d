"""Whose requests generate in a pool of late: whether a flow has company there."""

from math import inf
from typing import Final

from penstock.balancing.admission.ticket import NO_FLOW, Flow

# Who has asked for nothing for so long has no backend left free. With more, one small request of
# another tenant now and then would cost long prompts a part of the fleet all the time.
LATELY_S: Final = 3.0


class Company:
    """The two flows whose requests came last."""

    __slots__ = ("_before", "_before_s", "_last", "_last_s")

    def __init__(self) -> None:
        self._last = self._before = NO_FLOW
        self._last_s = self._before_s = -inf

    def came(self, flow: Flow, now_s: float) -> None:
        """A request of this flow that generates has come."""
        if flow is not self._last:
            self._before, self._before_s = self._last, self._last_s
        self._last, self._last_s = flow, now_s

    def others(self, flow: Flow, now_s: float) -> bool:
        """Whether one of another flow has come of late."""
        came_s = self._last_s if self._last is not flow else self._before_s
        return now_s - came_s < LATELY_S
