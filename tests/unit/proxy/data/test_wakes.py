"""The clock of admission, and what a fault in it may cost."""

from typing import Any, cast

import pytest

from penstock.balancing.admission.controller import Admission
from penstock.balancing.admission.dispatch import Told
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.gate import NoBackend
from penstock.proxy.data.plane import Wakes


class Faulty:
    """Its wakes find something for one request, and then fail."""

    waiting = 1

    def __init__(self, request: QueuedRequest) -> None:
        self._request = request

    def wake(self, now_s: float, outcomes: list[Told]) -> None:
        outcomes.append((self._request, NoBackend()))
        raise RuntimeError


class Loop:
    """Does nothing by itself."""

    def __init__(self) -> None:
        self.soon: list[Any] = []

    def call_soon(self, callback: Any) -> None:
        self.soon.append(callback)

    def call_later(self, after_s: float, callback: Any) -> None:
        """Nobody waits for it."""


@pytest.mark.once
def test_what_a_wake_has_found_before_it_fails_is_told() -> None:
    """Else a request that was placed there would count for ever."""
    told: list[object] = []
    request = QueuedRequest(Ask("/"), 0.0, told.append)
    loop = Loop()
    wakes = Wakes(cast("Any", loop), lambda: 0.0, cast("Admission", Faulty(request)))
    wakes.soon()
    with pytest.raises(RuntimeError):
        loop.soon.pop()()
    assert [type(each) for each in told] == [NoBackend]
