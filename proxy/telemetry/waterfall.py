"""Where the time of one request went: its record as parts that follow each other. Pure."""

from typing import Final, NamedTuple

from penstock.proxy.telemetry.record import Record, Try

RECEIVE: Final = "receive"  # the client sent its request
READ: Final = "read"  # penstock read the body, and counted its tokens
CHOOSE: Final = "choose"  # penstock chose a backend
QUEUE: Final = "queue"  # it waited in penstock. `why`: for what (`WaitReason`)
FAILED: Final = "failed"  # an attempt that failed. `why`: its failure
CONNECT: Final = "connect"  # until it was written to a connection
HEAD: Final = "head"  # until the backend began its answer; a plain answer begins when it is ready
PREFILL: Final = "prefill"  # of a stream: until its first token
DECODE: Final = "decode"  # of a stream: all tokens after the first one
BODY: Final = "body"  # of any other answer: after its head
CLIENT: Final = "client"  # its client took nothing of the answer, or too little
END: Final = "end"  # what is left after a failure


class Part(NamedTuple):
    """One part. `backend`: where. `why`: for a wait and for a failure, in one word."""

    name: str
    seconds: float
    backend: str = ""
    why: str = ""


def waterfall(record: Record, now_s: float) -> list[Part]:
    """The parts of a request, which add up to all of its time. Empty ones are left out.

    `now_s`: for one that has not ended.
    """
    parts = _Parts(record.began_s, record.ended_s or now_s)
    parts.until(record.received_s, RECEIVE)
    if not record.read_s:
        parts.until(parts.end_s, READ)
        return parts.found
    parts.until(record.read_s, READ)
    waited_s = record.waited_s
    if record.waiting_since_s:
        waited_s += max(0.0, parts.end_s - record.waiting_since_s)
    for each in record.tries:
        waited_s -= _wait(parts, each.began_s, waited_s, record.waits_for)
        if each.failure and not each.first_token_s:
            parts.until(each.ended_s, FAILED, each.backend, each.failure)
        elif each.failure or each is record.tries[-1]:
            _served(parts, record, each)
    if not record.tries or record.tries[-1].failure:
        _wait(parts, parts.end_s if waited_s > 0 else 0.0, waited_s, record.waits_for)
    parts.until(parts.end_s, END if record.tries else CHOOSE)
    return parts.found


class _Parts:
    """The parts found so far. Times that are missing or out of order make no part."""

    def __init__(self, began_s: float, end_s: float) -> None:
        self._at_s = began_s
        self.end_s = end_s
        self.found: list[Part] = []

    def left_s(self, at_s: float) -> float:
        """The time from the last part to a moment."""
        return max(0.0, min(at_s, self.end_s) - self._at_s)

    def until(self, at_s: float, name: str, backend: str = "", why: str = "") -> None:
        """All from the last part to a moment is this part."""
        seconds = self.left_s(at_s)
        if seconds > 0.0:
            self._at_s = at_s
            self.found.append(Part(name, seconds, backend, why))


def _wait(parts: _Parts, at_s: float, waited_s: float, waits_for: str) -> float:
    """What came before a choice. Returns how much of it was a wait."""
    wait_s = min(waited_s, parts.left_s(at_s))
    parts.until(at_s - wait_s, CHOOSE)
    parts.until(at_s, QUEUE, why=waits_for)
    return wait_s


def _served(parts: _Parts, record: Record, served: Try) -> None:
    """The attempt that answered, as far as it came."""
    end_s = served.ended_s if served.failure else parts.end_s
    stalled_s = record.stalled_s
    if record.stalled_since_s:
        stalled_s += max(0.0, end_s - record.stalled_since_s)
    name = served.backend
    if not served.sent_s:
        parts.until(end_s, CONNECT, name)
        return
    parts.until(served.sent_s, CONNECT, name)
    if not served.first_byte_s:
        parts.until(end_s, HEAD, name)
        return
    parts.until(served.first_byte_s, HEAD, name)
    if record.streamed and not served.first_token_s:
        parts.until(end_s, PREFILL, name)
        return
    if record.streamed:
        parts.until(served.first_token_s, PREFILL, name)
    stalled_s = min(stalled_s, parts.left_s(end_s))
    parts.until(end_s - stalled_s, DECODE if record.streamed else BODY, name, served.failure)
    parts.until(end_s, CLIENT)


# A client asks for it by this header with the value 1.
ASKED: Final = b"x-penstock-timing"
# What each part is called there. What the client itself took is left out: it knows that.
_METRICS: Final = {
    READ: "read",
    CHOOSE: "choice",
    QUEUE: "queue",
    FAILED: "failed",
    CONNECT: "connect",
    HEAD: "upstream",
    PREFILL: "upstream",
    DECODE: "upstream",
    BODY: "upstream",
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
