"""What can be made to go wrong on a simulated server.

A fault stays until it is cleared or has hit `times` requests (connections, for those that act
on connections). Faults hit POST requests only, except the health ones, so that probes and
`/sim/...` keep working; `path` narrows a fault to one path.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class FaultKind(StrEnum):
    REFUSE = "refuse"
    """The listener is closed: connections are refused."""
    HANG_ACCEPT = "hang_accept"
    """Connections are accepted, and what comes on them is ignored."""
    HANG_BEFORE_HEADERS = "hang_before_headers"
    HANG_AFTER_HEADERS = "hang_after_headers"
    HANG_MID_STREAM = "hang_mid_stream"
    """Silent for ever after `tokens` tokens; so are the two above with none."""
    CUT_BEFORE_HEADERS = "cut_before_headers"
    CUT_AFTER_HEADERS = "cut_after_headers"
    CUT_MID_STREAM = "cut_mid_stream"
    """The connection ends after `tokens` tokens, or after half of an unstreamed body."""
    CUT_AT_BYTE = "cut_at_byte"
    """The connection ends after byte `at_byte` of a stream's events."""
    GARBAGE = "garbage"
    """What is no HTTP, after `tokens` tokens; then the connection ends."""
    ERROR_EVENT = "error_event"
    """An error inside the 200, code `status`, after `tokens` tokens; then `[DONE]`."""
    DONE_ONLY = "done_only"
    """A stream of nothing but its end, as of a request that is given up in the queue."""
    ABORT_EMPTY = "abort_empty"
    """No text and finish_reason "abort"."""
    ABORT_MID_STREAM = "abort_mid_stream"
    """finish_reason "abort" after `tokens` tokens, as from a server whose requests are dropped."""
    INTERNAL_ERROR = "internal_error"
    """500 at once, for no reason given."""
    BUSY = "busy"
    """503: the admission limit is reached."""
    DRAINING = "draining"
    """What vLLM does after SIGTERM: fast 500s while `/health` says 200."""
    HEALTH_503 = "health_503"
    HEALTH_HANG = "health_hang"
    UNSOLICITED = "unsolicited"
    """A whole answer nobody asked for, `delay_s` after the real one, on the idle connection."""
    SECOND_ANSWER = "second_answer"
    """A second answer in the same write as the end of the first."""
    EARLY_HINTS = "early_hints"
    """A 103 before the answer."""
    KEEP_ALIVE = "keep_alive"
    """An SSE comment every `every_s` until the first token."""
    MULTI_TOKEN = "multi_token"  # noqa: S105 - tokens of text
    """`tokens` tokens a chunk."""
    SPLIT = "split"
    """Each event in two TCP writes, `delay_s` apart, cut at byte `at_byte`."""
    CRLF = "crlf"
    """SSE lines end in CR LF."""


CONNECTION_KINDS: Final = frozenset({FaultKind.REFUSE, FaultKind.HANG_ACCEPT})
HEALTH_KINDS: Final = frozenset({FaultKind.HEALTH_503, FaultKind.HEALTH_HANG})


@dataclass(slots=True)
class Fault:
    """One misbehaviour, how it looks, and how often it still happens."""

    kind: FaultKind
    times: int | None = None
    path: str | None = None
    tokens: int = 1
    status: int = 503
    rst: bool = False
    every_s: float = 1.0
    delay_s: float = 0.005
    at_byte: int = 1


Taken = dict[FaultKind, Fault]
"""The faults that hit one request."""


class Faults:
    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._active: Taken = {}
        self._changed = changed

    def set(self, kind: FaultKind | str, **options: Any) -> Fault:
        """Switch a fault on, in place of any earlier one of its kind."""
        kind = FaultKind(kind)
        if kind is FaultKind.ERROR_EVENT:
            options.setdefault("tokens", 0)
        fault = Fault(kind, **options)
        if fault.times is None or fault.times > 0:
            self._active[kind] = fault
        self._changed()
        return fault

    def clear(self, *kinds: FaultKind | str) -> None:
        """Switch these off, or all."""
        for kind in kinds or tuple(self._active):
            self._active.pop(FaultKind(kind), None)
        self._changed()

    def active(self, kind: FaultKind) -> bool:
        return kind in self._active

    def take(self, kind: FaultKind, path: str | None = None) -> Fault | None:
        """The fault if it hits now, counted as one of its times."""
        fault = self._active.get(kind)
        if fault is None or (fault.path is not None and fault.path != path):
            return None
        if fault.times is not None:
            fault.times -= 1
            if fault.times == 0:
                del self._active[kind]
        return fault

    def take_all(self, path: str) -> Taken:
        """Every fault that hits a request to a path."""
        if not self._active:
            return {}
        kinds = self._active.keys() - CONNECTION_KINDS - HEALTH_KINDS
        taken = {kind: self.take(kind, path) for kind in kinds}
        return {kind: fault for kind, fault in taken.items() if fault is not None}

    def listing(self) -> list[dict[str, Any]]:
        return [asdict(fault) for fault in self._active.values()]
