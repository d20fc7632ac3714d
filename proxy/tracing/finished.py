"""A request that has ended, with all that its spans tell, and those that wait to be sent.

What waits is bounded in spans, and each has a bounded size. Nobody's requests take more of the room
than they leave: one tenant that has every request traced cannot crowd out the others' spans.
"""

from collections import deque
from typing import Final

from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Try

# About 1 KB each, and 2 KB at most: the longest id, model and tracestate.
SPANS_MAX: Final = 4_096


class Finished:
    """One request. `ended_unix_ns`: when it ended, by the clock of receivers.

    `route` is empty if its path is not served. `max_tokens`: 0 if it set no limit.
    """

    __slots__ = (
        "choices",
        "ended_unix_ns",
        "kept",
        "max_tokens",
        "method",
        "parent_id",
        "route",
        "scheme",
        "span_id",
        "state",
        "trace_id",
        "tries",
    )

    def __init__(
        self,
        kept: Kept,
        trace_id: bytes,
        span_id: bytes,
        parent_id: bytes,
        state: bytes,
        method: str,
        route: str,
        scheme: str,
        ended_unix_ns: int,
        max_tokens: int = 0,
        choices: int = 1,
    ) -> None:
        self.kept = kept
        self.tries: list[Try] = kept.record.tries  # those of the record are fewer once it is kept
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.state = state
        self.method = method
        self.route = route
        self.scheme = scheme
        self.ended_unix_ns = ended_unix_ns
        self.max_tokens = max_tokens
        self.choices = choices

    @property
    def spans(self) -> int:
        """How many it has: its own, and one for each attempt."""
        return 1 + len(self.tries)


class Waiting:
    """Requests whose spans are not sent yet, the oldest first."""

    __slots__ = ("_by_client", "_requests", "_spans_max", "spans")

    def __init__(self, spans_max: int = SPANS_MAX) -> None:
        self._spans_max = spans_max
        self._requests: deque[Finished] = deque()
        self._by_client: dict[str, int] = {}
        self.spans = 0

    def put(self, request: Finished) -> bool:
        """Take a request. False: there is no room for it."""
        client, spans = request.kept.owner, request.spans
        mine = self._by_client.get(client, 0) + spans
        if mine > self._spans_max - self.spans:
            return False
        self._by_client[client] = mine
        self._requests.append(request)
        self.spans += spans
        return True

    def take(self, spans: int) -> list[Finished]:
        """The oldest, until there are so many spans."""
        taken: list[Finished] = []
        while spans > 0 and self._requests:
            request = self._requests.popleft()
            client = request.kept.owner
            self.spans -= request.spans
            self._by_client[client] -= request.spans
            if not self._by_client[client]:
                del self._by_client[client]
            spans -= request.spans
            taken.append(request)
        return taken
