"""Where the time to first tokens went, of the streams that ended in the last minute. Pure.

Of a second with more than some hundred requests only those count that are kept (`Recent`).
"""

from collections import deque
from operator import add, sub
from typing import Final, NamedTuple

from penstock.proxy.telemetry import waterfall as parts_of
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.waterfall import waterfall

WINDOW_S: Final = 60.0
STREAMS_MAX: Final = 1_024  # of each pool
# The parts of a waterfall until the first token, as the page names them.
PARTS: Final = {
    parts_of.RECEIVE: "client",
    parts_of.READ: "penstock",
    parts_of.CHOOSE: "penstock",
    parts_of.QUEUE: "queue",
    parts_of.FAILED: "failed",
    parts_of.CONNECT: "connect",
    parts_of.HEAD: "engine",
    parts_of.PREFILL: "engine",
}
NAMES: Final = ("client", "penstock", "queue", "failed", "connect", "engine")


class _Stream(NamedTuple):
    ended_s: float
    ttft_s: float
    parts: list[float] | None  # in the order of NAMES. None: nobody looked


class _Pool:
    """The streams of one pool, the oldest first. `sums`: of the parts of `seen` of them."""

    __slots__ = ("seen", "streams", "sums")

    def __init__(self) -> None:
        self.streams: deque[_Stream] = deque()
        self.sums = [0.0] * len(NAMES)
        self.seen = 0

    def add(self, stream: _Stream) -> None:
        if len(self.streams) >= STREAMS_MAX:
            self._drop()
        self.streams.append(stream)
        if stream.parts is not None:
            self.sums = list(map(add, self.sums, stream.parts))
            self.seen += 1

    def look(self, now_s: float) -> None:
        """Drop what is too old."""
        while self.streams and self.streams[0].ended_s <= now_s - WINDOW_S:
            self._drop()
        if not self.seen:  # sums of floats drift
            self.sums = [0.0] * len(NAMES)

    def _drop(self) -> None:
        parts = self.streams.popleft().parts
        if parts is not None:
            self.sums = list(map(sub, self.sums, parts))
            self.seen -= 1


class FirstTokens:
    """The streams of the last minute."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def add(self, kept: Kept, now_s: float, *, parts: bool = True) -> None:
        """Add a request that has ended. `parts`: somebody looks where its time went, too."""
        record = kept.record
        first_s = record.first_token_s
        if record.streamed and first_s and record.ended_s > now_s - WINDOW_S:
            pool = self._pools.get(record.pool)
            if pool is None:
                pool = self._pools[record.pool] = _Pool()
            told = _until_first(record) if parts else None
            pool.add(_Stream(record.ended_s, first_s - record.began_s, told))

    def told(self, now_s: float) -> dict[str, dict[str, object]]:
        """Percentiles and the mean of each part, by pool."""
        for pool in self._pools.values():
            pool.look(now_s)
        self._pools = {name: pool for name, pool in self._pools.items() if pool.streams}
        return {name: _of(pool) for name, pool in self._pools.items()}


def _of(pool: _Pool) -> dict[str, object]:
    times = sorted([each.ttft_s for each in pool.streams])
    count = len(times)
    return {
        "streams": count,
        "ttft_p50_s": round(times[count // 2], 4),
        "ttft_p95_s": round(times[min(count - 1, int(0.95 * count))], 4),
        "ttft_mean_s": round(sum(times) / count, 4),
        "parts": {
            name: round(max(0.0, total) / max(1, pool.seen), 5)
            for name, total in zip(NAMES, pool.sums, strict=True)
        },
    }


def _until_first(record: Record) -> list[float]:
    found = [0.0] * len(NAMES)
    for part in waterfall(record, record.ended_s):
        name = PARTS.get(part.name)
        if name is not None:
            found[NAMES.index(name)] += part.seconds
    return found
