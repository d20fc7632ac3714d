"""Which requests are traced. Pure.

The caller's decision counts, so that a trace is whole. Without a caller's, a share of the traces is
taken, by the lowest bits of their ids: whoever else decides by them decides alike. A client may
have a request traced by the sampled flag. But that is limited to a share of its own requests and,
for all clients together, to a number in a minute. Of that number nobody gets more than is left for
the others.
"""

from math import ceil, floor
from typing import Final

from penstock.conf.tracing import TracingSettings

# The bits of a trace's id that decide (OpenTelemetry, consistent probability sampling).
_BITS: Final = 56
_ALL: Final = 1 << _BITS
# So much of its share a client may save up. A new client has one, so that its first flag counts.
CREDIT_MAX: Final = 10.0
# So many clients are known. Then all are forgotten and are new again. The number in a minute holds.
CLIENTS_MAX: Final = 1_024
# The number is counted for a tenth of a minute each, so that nobody waits long for the next.
WINDOW_S: Final = 6.0
# Sums of shares such as 0.1 are not exact.
_NEARLY_ONE: Final = 1.0 - 1e-9


class Sampler:
    """Decides for one configuration."""

    __slots__ = (
        "_credits",
        "_least",
        "_left",
        "_per_window",
        "_share",
        "_taken",
        "_window_ends_s",
    )

    def __init__(self, settings: TracingSettings) -> None:
        self._least = _ALL - floor(settings.ratio * _ALL)
        self._share = settings.forced_ratio
        self._per_window = ceil(settings.forced_per_minute * WINDOW_S / 60.0)
        self._credits: dict[str, float] = {}
        self._window_ends_s = 0.0
        self._left = 0
        self._taken: dict[str, int] = {}  # in this window, by whoever took any

    def begins(self, trace_id: int) -> bool:
        """Whether a trace that begins here is one of the share."""
        return trace_id % _ALL >= self._least

    def seen(self, client: str) -> None:
        """A request of this client has come: its share grows."""
        known = self._credits
        credit = known.get(client)
        if credit is None:
            if len(known) >= CLIENTS_MAX:
                known.clear()
            known[client] = 1.0
        elif credit < CREDIT_MAX:
            known[client] = credit + self._share

    def forced(self, client: str, now_s: float) -> bool:
        """Whether the request that `seen` was told of is traced because its client asks for it."""
        credit = self._credits.get(client, 0.0)
        if self._share <= 0.0 or credit < _NEARLY_ONE or not self._take(client, now_s):
            return False
        self._credits[client] = credit - 1.0
        return True

    def _take(self, client: str, now_s: float) -> bool:
        if now_s >= self._window_ends_s:
            self._window_ends_s = now_s + WINDOW_S
            self._left = self._per_window
            self._taken.clear()
        taken = self._taken.get(client, 0)
        if taken >= self._left:
            return False
        self._taken[client] = taken + 1
        self._left -= 1
        return True
