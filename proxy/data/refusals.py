"""Makes the errors for requests that penstock turns away, with the time to retry."""

from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Final

from penstock.balancing.admission.degradation import HOLD_S
from penstock.proxy.data.overload import Overload
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.errors.own import (
    HINT_MAX_S,
    AdapterNotLoaded,
    ContextTooLongNow,
    NoBackendReady,
    Overloaded,
    ResponseOutOfReach,
    TooLate,
    TooLong,
)
from penstock.proxy.telemetry.metrics import Metrics

# The label of every request while there is only one priority.
PRIORITY: Final = "0"
# The base of Retry-After for a limit that frees up when other requests end.
ROOM_S: Final = 1.0


def late(retry_after_s: float, wait_s: float, *, own: bool) -> PenstockError:
    """Its first token would come too late. `own`: for the time that its client allows."""
    return (TooLate if own else TooLong)(wait_s, retry_after_s=retry_after_s)


class Refusals:
    """Makes, and counts, errors for penstock's own limits, with retry hints."""

    def __init__(
        self,
        overload: Overload,
        metrics: Metrics,
        rng: Random,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._overload = overload
        self._metrics = metrics
        self._rng = rng
        self._now = now
        self.probe_interval_s = 0.0

    def overloaded(self, reason: str, message: str | None = None) -> Overloaded:
        """A limit of the process is reached: count it, and say when to retry.

        Times are spread by half, or all refused clients would come back at once.
        """
        self._metrics.shed.add(reason, PRIORITY)
        spread = 1.0 - self._rng.random() / 2
        overload = self._overload
        if reason != overload.reason:
            return Overloaded(reason, message, retry_after_s=ROOM_S * spread)
        now_s = self._now()
        return Overloaded(
            reason,
            message,
            retry_after_s=overload.hint_s(now_s) * spread,
            hopeless=overload.hopeless(now_s),
        )

    def too_late(
        self, retry_after_s: float, wait_s: float, service_class: str, *, own: bool
    ) -> PenstockError:
        """Its first token would come too late: count it. `own` as for `late`."""
        self._metrics.shed.add("deadline" if own else "wait", service_class)
        return late(retry_after_s, wait_s, own=own)

    def too_long_now(self, most_tokens: int) -> ContextTooLongNow:
        """Longer prompts than this are refused for now. That lasts for HOLD_S at least."""
        self._metrics.degraded.add("prompt_tokens")
        retry_after_s = HOLD_S * self._rng.uniform(1.0, 2.0)
        return ContextTooLongNow(most_tokens, retry_after_s=retry_after_s)

    def crowded(self) -> Overloaded:
        """There are more clients than seats."""
        return self.overloaded("connections", "Too many connections are open; retry.")

    def no_room(self) -> Overloaded:
        """There is no room for the body that is being read."""
        if self._overload.reason == "memory":
            return self.overloaded("memory")
        message = "The bodies of all requests together are too large; retry."
        return self.overloaded("bodies", message)

    def full(self, busy_s: float = 0.0) -> Overloaded:
        """The backends have all the requests that they may have, and none may wait.

        `busy_s`: for how long they have said so themselves. 0.0: `max_requests` says so.
        """
        message = "The backends have as many requests as they may have; retry."
        if not busy_s:
            return self.overloaded("max_requests", message)
        error = self.overloaded("busy", message)
        error.retry_after_s = min(busy_s, HINT_MAX_S)
        return error

    def no_backend(self) -> NoBackendReady:
        """No backend can serve. The hint is the time of the next probe, which may change that."""
        return NoBackendReady(retry_after_s=self.probe_interval_s)

    def out_of_reach(self) -> ResponseOutOfReach:
        """No backend that may hold the stored response can be asked."""
        return ResponseOutOfReach(retry_after_s=self.probe_interval_s)

    def not_loaded(self, rest_s: float) -> AdapterNotLoaded:
        """No backend is asked to load its adapter for so long."""
        return AdapterNotLoaded(retry_after_s=max(ROOM_S, rest_s))
