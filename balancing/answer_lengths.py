"""How long a backend's answers are beside what is usual for their kind, for each client.

One sample is one whole answer: its tokens as a share of the mean of its class (`output_length`), so
that short classes and long ones may be mixed. `brief_answers` compares backends by these.
"""

from typing import Final

import xxhash

# Older answers count half after so long, and half again. A backend that was mended is soon known.
HALF_S: Final = 120.0
# Clients with samples of their own. All others share one more entry, REST.
NAMES_MAX: Final = 8
REST: Final = ""
# Comparing takes a look at every peer.
COMPARED_EACH: Final = 16
# One client is in one of these, and two are in no more than two: less than half.
GROUPS: Final = 5


class Lengths:
    """The number of samples, their sum, and the sum of their squares."""

    __slots__ = ("samples", "squares", "total")

    def __init__(self) -> None:
        self.samples = self.total = self.squares = 0.0

    def note(self, share: float) -> None:
        """One more sample."""
        self.samples += 1.0
        self.total += share
        self.squares += share * share

    def add(self, other: "Lengths", times: float = 1.0) -> None:
        """The samples of `other`, each counted so many times."""
        self.samples += times * other.samples
        self.total += times * other.total
        self.squares += times * other.squares

    @property
    def mean(self) -> float:
        return self.total / self.samples if self.samples else 0.0


class AnswerLengths:
    """The samples of one backend."""

    __slots__ = (
        "_by_client",
        "_halved_s",
        "_since",
        "began_s",
        "brief_for",
        "brief_in_row",
        "groups",
        "told_s",
    )

    def __init__(self) -> None:
        self._by_client: dict[str, Lengths] = {}
        self.groups = [Lengths() for _ in range(GROUPS)]  # of all clients, by their hash
        self._halved_s = 0.0
        self._since = 0  # samples since the last comparison
        self.began_s: float | None = None  # the first sample
        self.brief_in_row = 0  # how many comparisons in a row found its answers brief
        self.brief_for: str | None = None  # for this client alone; None: for all
        self.told_s = float("-inf")  # when an operator was told of it

    def add(self, client: str, share: float, now_s: float) -> None:
        """A whole answer had `share` times the tokens that are usual for its class."""
        if now_s - self._halved_s > HALF_S:
            self._halve(now_s)
        if self.began_s is None:
            self.began_s = now_s
        mine = self._by_client.get(client)
        if mine is None:
            named = client if len(self._by_client) < NAMES_MAX else REST
            mine = self._by_client.setdefault(named, Lengths())
        mine.note(share)
        self.groups[xxhash.xxh3_64_intdigest(client.encode()) % GROUPS].note(share)
        self._since += 1

    def is_due(self, client: str) -> bool:
        """Whether to compare it with its peers now: the next time after so many samples.

        While it was found brief it gets few requests, so each answer is compared.
        """
        brief = self.brief_in_row > 0 and self.brief_for in (None, client)
        if self._since < COMPARED_EACH and not brief:
            return False
        self._since = 0
        return True

    def of(self, client: str) -> Lengths:
        """The samples of this client, none if it shares them with others."""
        return self._by_client.get(client, Lengths())

    def _halve(self, now_s: float) -> None:
        for each in (*self.groups, *self._by_client.values()):
            each.add(each, -0.5)
        self._by_client = {c: each for c, each in self._by_client.items() if each.samples >= 1.0}
        self._halved_s = now_s
