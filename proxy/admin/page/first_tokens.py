"""Where the time to first tokens went, of the streams that ended in the last minute. Pure.

Of a second with more than some hundred requests only those count that are kept (`Recent`).
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.proxy.telemetry import waterfall as parts_of
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.waterfall import waterfall

WINDOW_S: Final = 60.0
STREAMS_MAX: Final = 4_096
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
    pool: str
    ttft_s: float
    parts: dict[str, float]


class FirstTokens:
    """The streams of the last minute."""

    def __init__(self) -> None:
        self._streams: deque[_Stream] = deque(maxlen=STREAMS_MAX)

    def add(self, found: Iterable[Kept], now_s: float) -> None:
        """Add requests that have ended."""
        for kept in found:
            record = kept.record
            first_s = record.first_token_s
            if record.streamed and first_s and record.ended_s > now_s - WINDOW_S:
                ttft_s = first_s - record.began_s
                self._streams.append(
                    _Stream(record.ended_s, record.pool, ttft_s, _until_first(record))
                )

    def told(self, now_s: float) -> dict[str, dict[str, object]]:
        """Percentiles and the mean of each part, by pool."""
        by_pool: dict[str, list[_Stream]] = {}
        self._streams = deque(
            (each for each in self._streams if each.ended_s > now_s - WINDOW_S), STREAMS_MAX
        )
        for each in self._streams:
            by_pool.setdefault(each.pool, []).append(each)
        return {pool: _of(streams) for pool, streams in by_pool.items()}


def _of(streams: list[_Stream]) -> dict[str, object]:
    times = sorted([each.ttft_s for each in streams])
    count = len(times)
    return {
        "streams": count,
        "ttft_p50_s": round(times[count // 2], 4),
        "ttft_p95_s": round(times[min(count - 1, int(0.95 * count))], 4),
        "ttft_mean_s": round(sum(times) / count, 4),
        "parts": {
            name: round(sum([each.parts.get(name, 0.0) for each in streams]) / count, 5)
            for name in NAMES
        },
    }


def _until_first(record: Record) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in waterfall(record, record.ended_s):
        name = PARTS.get(part.name)
        if name is not None:
            found[name] = found.get(name, 0.0) + part.seconds
    return found
