"""How often a backend refuses requests lately, by group of clients.

A server with another key, a shorter context or a missing flag refuses within a millisecond, so it
holds the least load and would get every request. But usually refusals are the client's own fault.
The backend is at fault only if it refuses several times as often as its peers (`failures`). Clients
are compared in groups. One group alone decides for its own clients only, so no client makes a
backend look bad to others. A refusal is any answer that does not serve the request: a 4xx, an error
inside a 200, a login page, an answer without a token.
"""

from typing import Final

import xxhash

# The half-life of counted refusals and requests. After FORGOTTEN half-lives they are dropped.
WINDOW_S: Final = 60.0
FORGOTTEN: Final = 20.0
# A client is in one of these, by its hash.
GROUPS: Final = 32


class Refusals:
    """The refusals of one backend by group of clients, and its requests. Both fade by halves."""

    def __init__(self) -> None:
        self._given = [0.0] * GROUPS
        self._halved_s: float | None = None
        self._requests_total = 0
        self.requests = 1.0

    def add(self, client: str) -> None:
        """Count a refusal. Call `by_group` before."""
        self._given[group_of(client)] += 1.0

    def by_group(self, requests_total: int, now_s: float) -> list[float]:
        """How many refusals each group got. `requests_total`: that its backend has had ever."""
        if self._halved_s is None:  # the first time: what came before is not known
            self._halved_s, self._requests_total = now_s, requests_total
        windows = max(1.0, (now_s - self._halved_s) / WINDOW_S)
        if windows > 1.0:
            self._halved_s = now_s
            kept = float(0.5 ** min(windows, FORGOTTEN))
            self._given = [kept * each for each in self._given]
            self.requests *= kept
        new = (requests_total - self._requests_total) / windows
        self.requests = max(1.0, self.requests + new)
        self._requests_total = requests_total
        return self._given


def group_of(client: str) -> int:
    """The group of a client, the same at all backends."""
    return xxhash.xxh3_64_intdigest(client.encode()) % GROUPS
