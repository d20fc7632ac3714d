"""The load that other replicas of this proxy put on one backend, as they report it.

There is one entry for each source. It holds the source's own load only, so nothing is counted twice
where all report to all. An entry that was counted too long ago counts no more. Requests that it had
counted then show in the engine's own report, as strangers' do (`hidden_requests`).

Today the routers of an experiment are the only sources. A source can be wrong, but it is not an
attacker: whoever carries reports between machines must check who sends them. A wrong count turns
requests away from one backend until it ages. It never makes a backend unfit. Time is an argument.
"""

from math import inf
from typing import Final

from penstock.balancing.load import Counts

# Ten reports of a replica that sends five a second. Eight routers that do so choose better than
# without reports. With one report a second they do only where prompts are long
# (`penstock bench routing --routers 8 --share-s 0.2`).
AGE_S_MAX: Final = 2.0
# More than there are replicas before one fleet.
SOURCES_MAX: Final = 64
# No engine holds so many tokens. A larger count is an error, and a much larger one is no float.
COUNT_MAX: Final = 2**40


class RemoteLoad:
    """The sum of all entries. `until_s`: after this time an entry may be too old."""

    __slots__ = (
        "_entries",
        "active_decode_tokens",
        "engine_requests",
        "queued_prefill_tokens",
        "queued_work",
        "requests",
        "streams",
        "until_s",
    )

    def __init__(self) -> None:
        self.queued_prefill_tokens = 0
        self.queued_work = 0
        self.active_decode_tokens = 0
        self.streams = 0
        self.requests = 0
        self.engine_requests = 0
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
