"""Requests that were there lately, for whoever asks where their time went.

The latest ones are kept, those that failed, a sample over a longer time, and the slowest of the
last minutes. Nothing is formatted before somebody asks. Of a client's text only its request id is
kept, and a model's name if a backend lists it. Each kind is a table of its own. In each a tenant or
client displaces only its own entries once it has its share. All of it is at most 1,280 requests of
about 1 KB, and of 3 KB at most, each with the longest id and eight attempts: 1.3 MB, at most 4 MB.

Who sends hundreds of requests a second has only some of each second among the latest. Keeping all
took up to an eighth of a small request's CPU: each took memory that had left the caches.
"""

from heapq import heappop, heappush
from itertools import zip_longest
from typing import Final

from penstock.balancing.fair_table import FairTable
from penstock.proxy.telemetry.record import Record

LATEST_MAX: Final = 512
FAILED_MAX: Final = 256
SAMPLED_MAX: Final = 256
SAMPLED_EVERY: Final = 64  # one in so many requests is in the sample
LATEST_PER_S: Final = 64  # of one owner
SLOW_MAX: Final = 64
# Where many want places, so many of the slowest are of one owner at most.
OWN_MAX: Final = 8
# The slowest are those of this time and of the same time before it.
SLOW_WINDOW_S: Final = 300.0
ENTRIES_MAX: Final = LATEST_MAX + FAILED_MAX + SAMPLED_MAX + 4 * SLOW_MAX
# What one takes in memory: an ordinary request, and the longest (a test measures them).
BYTES_USUAL: Final = 1_024
BYTES_MAX: Final = 3_072
MODEL_CHARS_MAX: Final = 128
# A request may be tried at every backend. Of its attempts the first and the last ones are kept.
TRIES_MAX: Final = 8


class Kept:
    """One request. `model`: its name if a backend lists it. `stream`: its client asked for one."""

    __slots__ = ("model", "number", "owner", "record", "request_id", "stream", "tenant")

    def __init__(
        self,
        record: Record,
        request_id: bytes,
        owner: str,
        tenant: str,
        model: str | None,
        *,
        stream: bool,
    ) -> None:
        """`owner`: whose entries it may displace, a tenant or a client."""
        self.number = 0  # the later, the larger; 0 while it runs
        self.record = record
        self.request_id = request_id
        self.owner = owner
        self.tenant = tenant
        self.model = model[:MODEL_CHARS_MAX] if model is not None else None
        self.stream = stream

    @property
    def failed(self) -> bool:
        """Whether its client did not get a whole answer, or got an error."""
        return self.record.status >= 400 or not self.record.whole


class Recent:
    """The requests of one process that are kept."""

    def __init__(self) -> None:
        self._count = 0
        self._latest: FairTable[Kept] = FairTable(LATEST_MAX)
        self._failed: FairTable[Kept] = FairTable(FAILED_MAX)
        self._sampled: FairTable[Kept] = FairTable(SAMPLED_MAX)
        # How many requests of each owner ended in this second, and are among the latest.
        self._second, self._of_second = 0, dict[str, int]()
        self._until_s = 0.0
        # By the time until their first token, and by all of their time.
        self._waiting, self._waiting_before = Slowest(SLOW_MAX), Slowest(SLOW_MAX)
        self._long, self._long_before = Slowest(SLOW_MAX), Slowest(SLOW_MAX)

    def add(self, kept: Kept) -> None:
        """Keep a request that has ended, as long as its owner and others have no newer ones."""
        self._count = kept.number = number = self._count + 1
        owner, record = kept.owner, kept.record
        tries, ended_s = record.tries, record.ended_s
        if int(ended_s) != self._second:
            self._second, self._of_second = int(ended_s), {}
        count = self._of_second.get(owner, 0)
        if count < LATEST_PER_S:
            self._of_second[owner] = count + 1
            self._latest.put(owner, number, kept)
        if record.status >= 400 or not record.whole:
            self._failed.put(owner, number, kept)
        if number % SAMPLED_EVERY == 0:
            self._sampled.put(owner, number, kept)
        if not tries:
            return
        if len(tries) > TRIES_MAX:
            record.tries = [*tries[: TRIES_MAX // 2], *tries[-TRIES_MAX // 2 :]]
        if ended_s >= self._until_s:
            self._turn(ended_s)
        self._long.put(ended_s - record.began_s, kept)
        first_s = tries[-1].first_token_s
        if first_s:
            self._waiting.put(first_s - record.began_s, kept)

    def all(self) -> list[Kept]:
        """Each request that is kept, the latest first."""
        found = {kept.number: kept for kept in self.slow()}
        for table in (self._latest, self._failed, self._sampled):
            for kept in table.values():
                found[kept.number] = kept
        return [found[number] for number in sorted(found, reverse=True)]

    @property
    def count(self) -> int:
        """The number of the last request."""
        return self._count

    def since(self, number: int) -> list[Kept]:
        """Of the latest ones those after this number, in no order."""
        return [kept for kept in self._latest.values() if kept.number > number]

    def failed(self) -> list[Kept]:
        """Those that failed, the latest first."""
        return sorted(self._failed.values(), key=_number, reverse=True)

    def slow(self) -> list[Kept]:
        """The slowest ones: by turns the slowest until its first token, and the longest."""
        waiting = sorted([*self._waiting.ranked(), *self._waiting_before.ranked()], reverse=True)
        longest = sorted([*self._long.ranked(), *self._long_before.ranked()], reverse=True)
        found: dict[int, Kept] = {}
        for pair in zip_longest(waiting, longest):
            for entry in pair:
                if entry is not None:
                    found.setdefault(entry[1], entry[2])
        return list(found.values())

    def _turn(self, now_s: float) -> None:
        lately = now_s < self._until_s + SLOW_WINDOW_S
        self._waiting_before = self._waiting if lately else Slowest(SLOW_MAX)
        self._long_before = self._long if lately else Slowest(SLOW_MAX)
        self._waiting, self._long = Slowest(SLOW_MAX), Slowest(SLOW_MAX)
        self._until_s = now_s + SLOW_WINDOW_S


Ranked = tuple[float, int, Kept]


class Slowest:
    """The requests with the largest values, at most `most`, shared between their owners.

    When it is full, an owner with more than OWN_MAX and its even share loses its least to anyone
    with fewer. Else the larger value stays. With at most `most // 2` owners, each is sure of its
    slowest request and of its even share. With more owners nothing is reserved: otherwise fast
    requests of many would push out slow ones of a few.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._size = 0
        self._heaps: dict[str, list[Ranked]] = {}  # the least first
        # The least value, and the most entries of one owner. None: not known.
        self._bounds: tuple[float, int] | None = None

    def put(self, value: float, kept: Kept) -> None:
        owner = kept.owner
        if self._size >= self.most:
            loser = self._loser(owner, value)
            if loser is None:
                return
            self._displace(loser)
        heap = self._heaps.get(owner)
        if heap is None:
            heap = self._heaps[owner] = []
        heappush(heap, (value, kept.number, kept))
        self._size += 1
        self._bounds = None

    def ranked(self) -> list[Ranked]:
        """All of them, in no order."""
        return [entry for heap in self._heaps.values() for entry in heap]

    def _loser(self, owner: str, value: float) -> str | None:
        """Whose least one makes room for a value of `owner`. None: for this one nobody's does."""
        mine = self._heaps.get(owner, [])
        owners = len(self._heaps) + (not mine)
        few = owners <= self.most // 2
        share = self.most // owners
        allowed = max(share, OWN_MAX)
        if len(mine) >= allowed:
            return owner if value > mine[0][0] else None
        if self._bounds is None:
            heaps = self._heaps.values()
            self._bounds = min([each[0][0] for each in heaps]), max([len(each) for each in heaps])
        least, most = self._bounds
        if most > allowed:
            return max(self._heaps, key=lambda each: len(self._heaps[each]))
        first_of_few = few and not mine
        if value <= least and not first_of_few:
            return None
        spared = 0
        if few:
            spared = share if mine else 1
        found = [
            (heap[0][0], name)
            for name, heap in self._heaps.items()
            if len(heap) > spared or name == owner
        ]
        lost, loser = min(found)
        return loser if value > lost or first_of_few else None

    def _displace(self, owner: str) -> None:
        heap = self._heaps[owner]
        heappop(heap)
        self._size -= 1
        if not heap:
            del self._heaps[owner]


def _number(kept: Kept) -> int:
    return kept.number
