"""The load of one backend: our own, that of other replicas, and the answers that are held back.

Only a `Lease` changes our own.
"""

from math import inf
from typing import Final, NamedTuple


class Counts(NamedTuple):
    """A load at one moment, as other replicas are told it."""

    queued_prefill_tokens: int
    queued_work: int
    active_decode_tokens: int
    streams: int
    requests: int
    engine_requests: int


class Counters:
    """Tokens and requests at one backend, as integers.

    `queued_prefill_tokens` (P): prompt tokens of requests without a first token yet, less
    those that the backend's prefix cache probably holds. `queued_work`: the same tokens as
    prefill work (`prefill_speed`).
    `active_decode_tokens` (K): prompt and generated tokens of requests past their first token.
    `streams` (N): requests past their first token. `requests`: all requests in flight.
    `engine_requests`: what the engine makes of them (prompts x choices each).
    """

    def __init__(self) -> None:
        self.queued_prefill_tokens = 0
        self.queued_work = 0
        self.active_decode_tokens = 0
        self.streams = 0
        self.requests = 0
        self.engine_requests = 0


class Load(Counters):
    """What our own leases take. `retries`: requests that failed at another engine and have no first
    token yet. `sequence` changes with every counter."""

    def __init__(self) -> None:
        super().__init__()
        self.retries = 0
        self.sequence = 0

    @property
    def counts(self) -> Counts:
        return Counts(
            self.queued_prefill_tokens,
            self.queued_work,
            self.active_decode_tokens,
            self.streams,
            self.requests,
            self.engine_requests,
        )

    @property
    def idle(self) -> bool:
        """Whether all counters are zero. Every backend must come back to this."""
        return not (any(self.counts) or self.retries)


# For all held answers of one backend, which may begin a great many and finish none.
KEPT_BYTES_MAX: Final = 33_554_432
# A client, or a backend, may have more held only if a quarter of its new total stays free. Answers
# that never end must not take the room of others (the same rule as in `Bodies`).
LEFT: Final = 4


class KeptRoom:
    """The held answers of all backends together."""

    def __init__(self, limit_bytes: int = 2**62) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0


class KeptAnswers:
    """The held answers of one backend, by client. They take a part of `room`."""

    def __init__(self) -> None:
        self.room = KeptRoom()
        self.total_bytes = 0
        self.by_client: dict[str, int] = {}

    def change(self, client: str, more_bytes: int) -> bool:
        """Add `more_bytes`, which may be negative. False when there is no room: nothing changes."""
        room = self.room
        total_bytes = self.total_bytes + more_bytes
        own_bytes = self.by_client.get(client, 0) + more_bytes
        if more_bytes > 0:
            held_bytes = room.held_bytes + more_bytes
            if total_bytes + own_bytes // LEFT > KEPT_BYTES_MAX:
                return False
            if held_bytes + total_bytes // LEFT > room.limit_bytes:
                return False
        assert own_bytes >= 0
        room.held_bytes += more_bytes
        self.total_bytes = total_bytes
        if own_bytes:
            self.by_client[client] = own_bytes
        else:
            del self.by_client[client]
        return True


# Ten reports of a replica that sends five a second. Eight routers that do so choose better than
# without reports. With one report a second they do only where prompts are long
# (`penstock bench routing --routers 8 --share-s 0.2`).
AGE_S_MAX: Final = 2.0
# More than there are replicas before one fleet.
SOURCES_MAX: Final = 64
# No engine holds so many tokens. A larger count is an error, and a much larger one is no float.
COUNT_MAX: Final = 2**40


class RemoteLoad(Counters):
    """The load that other replicas of this proxy put on one backend, as they report it.

    There is one entry for each source. It holds the source's own load only, so nothing is counted
    twice where all report to all. An entry that was counted too long ago counts no more. Requests
    that it had counted then show in the engine's own report, as strangers' do (`hidden_requests`).
    `until_s`: after this time an entry may be too old.

    Today the routers of an experiment are the only sources. A source can be wrong, but it is not an
    attacker: whoever carries reports between machines must check who sends them. A wrong count
    turns requests away from one backend until it ages. It never makes a backend unfit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.until_s = inf
        self._entries: dict[str, tuple[float, Counts]] = {}  # by source; when it was counted

    def take(self, source: str, counts: Counts, now_s: float, age_s: float = 0.0) -> None:
        """Take a report of `source` that was counted `age_s` ago. A newer entry of it stays."""
        self.expire(now_s)
        at_s = now_s - max(0.0, age_s)
        if at_s + AGE_S_MAX < now_s or min(counts) < 0 or max(counts) > COUNT_MAX:
            return
        entry = self._entries.get(source)
        if entry is None:
            if len(self._entries) >= SOURCES_MAX:
                return
        elif entry[0] > at_s:
            return
        else:
            self._add(entry[1], -1)
        self._entries[source] = at_s, counts
        self._add(counts, 1)
        self.until_s = min(self.until_s, at_s + AGE_S_MAX)

    def expire(self, now_s: float) -> None:
        """Drop the entries that are too old. Call it before reading."""
        if now_s <= self.until_s:
            return
        for source, (at_s, counts) in list(self._entries.items()):
            if at_s + AGE_S_MAX < now_s:
                del self._entries[source]
                self._add(counts, -1)
        self.until_s = min([at_s for at_s, _ in self._entries.values()], default=inf) + AGE_S_MAX

    def _add(self, counts: Counts, sign: int) -> None:
        self.queued_prefill_tokens += sign * counts.queued_prefill_tokens
        self.queued_work += sign * counts.queued_work
        self.active_decode_tokens += sign * counts.active_decode_tokens
        self.streams += sign * counts.streams
        self.requests += sign * counts.requests
        self.engine_requests += sign * counts.engine_requests
