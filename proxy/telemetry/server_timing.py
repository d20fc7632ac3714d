"""`Server-Timing` of an answer: where the time went until its head. It names no backend."""

from typing import Final

from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.waterfall import (
    BODY,
    CHOOSE,
    CONNECT,
    DECODE,
    FAILED,
    HEAD,
    PREFILL,
    QUEUE,
    READ,
    waterfall,
)

# A client asks for it by this header with the value 1.
ASKED: Final = b"x-penstock-timing"
_UPSTREAM: Final = "upstream"
# What each part is called there. What the client itself took is left out: it knows that.
_METRICS: Final = {
    READ: "read",
    CHOOSE: "choice",
    QUEUE: "queue",
    FAILED: "failed",
    CONNECT: "connect",
    HEAD: _UPSTREAM,
    PREFILL: _UPSTREAM,
    DECODE: _UPSTREAM,
    BODY: _UPSTREAM,
}


def server_timing(record: Record, now_s: float) -> bytes:
    """The header's value: milliseconds, and for a wait the word for what there was none of."""
    spent = dict.fromkeys(_METRICS.values(), 0.0)
    for part in waterfall(record, now_s):
        if part.name in _METRICS:
            spent[_METRICS[part.name]] += part.seconds
    told = []
    for name, seconds in spent.items():
        if seconds > 0.0:
            why = f';desc="{record.waits_for}"' if name == QUEUE and record.waits_for else ""
            told.append(f"{name};dur={seconds * 1000:.3f}{why}")
    return ", ".join(told).encode("ascii")
