"""Looks at all open streams every few seconds: which were sent nothing, and which got no token.

After its first token a healthy stream may be silent for minutes, because its engine holds back the
arguments of a tool call until they are whole. Balancers before the proxy close such a connection
after a minute. So it gets comments. It ends if probes have found that its backend hangs. One look
at all streams costs less than a timer for each.
"""

from typing import Final

from penstock.proxy.data.client import Client
from penstock.proxy.data.clients import Clients
from penstock.proxy.data.event_relay import EventRelay, Seen

LOOK_S: Final = 5.0
# A silence is seen after this part of `hold_s`, if that is sooner.
LOOK_PART: Final = 0.25
# The most clients that are looked at in one turn of the loop: half a millisecond.
AT_ONCE_MAX: Final = 500


class Silences:
    """What was seen of each open stream at the last look."""

    __slots__ = ("_before", "_clients", "_next_s", "_seen", "_todo")

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._before: dict[EventRelay, Seen] = {}
        self._seen: dict[EventRelay, Seen] = {}
        self._todo: list[Client] = []
        self._next_s = 0.0

    def look(self, hold_s: float, now_s: float) -> None:
        """Go on with a look, or begin the next one if it is due."""
        if not self._todo:
            if now_s < self._next_s:
                return
            self._next_s = now_s + min(LOOK_S, LOOK_PART * hold_s)
            self._before, self._seen = self._seen, {}
            self._todo = list(self._clients)
        for client in self._todo[:AT_ONCE_MAX]:
            stream = client.stream
            if stream is not None:
                self._seen[stream] = stream.look(self._before.get(stream), hold_s, now_s)
        del self._todo[:AT_ONCE_MAX]
