"""What became of one request, and when: filled as it goes, read once at its end.

All times are of the data plane's clock, in seconds. 0.0 means that the request never came so far.
"""

from typing import Final

from penstock.proxy.dialects.dialect import Usage

# So many attempts of one request are kept: the first ones and the last.
TRIES_MAX: Final = 32


class Try:
    """One attempt at one backend. `failure`: the error's reason, empty while there is none.
    `status`: of its answer, once that is passed on whole, or of the error with which its stream
    begins. 0: there is none."""

    __slots__ = (
        "backend",
        "began_s",
        "ended_s",
        "failure",
        "first_byte_s",
        "first_token_s",
        "reason",
        "sent_s",
        "span_id",
        "status",
    )

    def __init__(self, backend: str, reason: str, began_s: float) -> None:
        """`reason`: why this backend. `began_s`: when it was chosen."""
        self.backend = backend
        self.reason = reason
        self.began_s = began_s
        self.sent_s = 0.0  # when it was first written to a connection
        self.first_byte_s = 0.0  # the head of the answer
        self.first_token_s = 0.0
        self.ended_s = 0.0
        self.failure = ""
        self.status = 0
        self.span_id = b""  # in hexadecimal, once its backend was told of it

    def sent(self, now_s: float) -> None:
        """It is written to a connection, maybe again: a stale one was replaced."""
        self.sent_s = self.sent_s or now_s

    def failed(self, failure: str, now_s: float) -> None:
        self.failure = failure
        self.ended_s = now_s


class Record:
    """One request: its times, its attempts, its tokens and its outcome."""

    __slots__ = (
        "accepted_s",
        "attempts",
        "began_s",
        "behind_s",
        "degraded",
        "ended_s",
        "error",
        "fell_back",
        "held_up",
        "made_tokens",
        "pool",
        "predicted_s",
        "read_s",
        "received_s",
        "route",
        "service_class",
        "stalled_s",
        "stalled_since_s",
        "status",
        "streamed",
        "trace_id",
        "tries",
        "usage",
        "waited_s",
        "waiting_since_s",
        "waits_for",
        "whole",
    )

    def __init__(self, began_s: float, accepted_s: float, received_s: float) -> None:
        """When the first byte came, the head was accepted, and the body was whole."""
        self.began_s = began_s
        self.accepted_s = accepted_s
        self.received_s = received_s
        self.waited_s = 0.0  # for room at a backend, before all its attempts
        self.waiting_since_s = 0.0  # when the present wait began
        self.waits_for = ""  # what there was none of when it was looked at last: a `WaitReason`
        self.service_class = ""  # empty without admission
        self.stalled_s = 0.0  # while its client took nothing of the answer
        self.stalled_since_s = 0.0  # when the present stall began
        self.behind_s = 0.0  # while its client was behind, and more came
        self.predicted_s = 0.0  # until its first token, as was predicted when it began to wait
        self.degraded = ""  # what was cut, as its client is told
        self.read_s = 0.0  # when the model, the number of tokens and the label were known
        self.tries: list[Try] = []
        self.attempts = 0  # as told to the client: a stale connection that failed counts, too
        self.pool = ""  # of the last backend
        self.usage: Usage | None = None  # as the backend counted, within what can be true
        self.made_tokens = 0  # of the answer, as its events and its text tell
        self.streamed = False  # the answer is a stream of events
        self.status = 0
        self.error: str | None = None  # the code of penstock's own error
        self.whole = False
        self.held_up = False  # the client took less than was written, for a while
        self.ended_s = 0.0
        self.route = ""  # the name of the one that matched, empty if none did
        self.fell_back = ""  # why it left each target of its route, with commas
        self.trace_id = ""  # of the trace that it belongs to, empty if to none

    def begin_try(self, backend: str, pool: str, reason: str, began_s: float) -> None:
        """A backend was chosen: an attempt at it begins."""
        self.pool = pool
        if len(self.tries) == TRIES_MAX:
            del self.tries[TRIES_MAX // 2]
        self.tries.append(Try(backend, reason, began_s))

    def waits(self, waits_for: str, now_s: float) -> None:
        """It begins to wait for room at a backend. `waits_for`: what there is none of."""
        self.waiting_since_s = now_s
        self.waits_for = waits_for

    def waited(self, waits_for: str, now_s: float) -> float:
        """The wait is over. Returns its seconds. `waits_for`: as the last look has found."""
        seconds = now_s - self.waiting_since_s
        self.waiting_since_s = 0.0
        self.waited_s += seconds
        self.waits_for = waits_for
        return seconds

    def stalls(self, now_s: float) -> None:
        """Its client takes less than it is sent."""
        self.stalled_since_s = self.stalled_since_s or now_s

    def flows(self, now_s: float) -> None:
        """Its client takes everything again, or the request is over."""
        if self.stalled_since_s:
            self.stalled_s += now_s - self.stalled_since_s
            self.stalled_since_s = 0.0

    @property
    def backend(self) -> str:
        """The last one. Empty if none was chosen."""
        return self.tries[-1].backend if self.tries else ""

    @property
    def reason(self) -> str:
        """Why this backend. Empty if none was chosen."""
        return self.tries[-1].reason if self.tries else ""

    @property
    def overhead_s(self) -> float:
        """From the whole body to the first byte sent to a backend, waits apart."""
        sent_s = self.sent_s
        return sent_s - self.received_s - self.waited_s if sent_s else 0.0

    @property
    def first_byte_s(self) -> float:
        """When the answer's head came from the last backend."""
        return self.tries[-1].first_byte_s if self.tries else 0.0

    @property
    def first_token_s(self) -> float:
        """When the first token came, or an answer that is not streamed."""
        return self.tries[-1].first_token_s if self.tries else 0.0

    @property
    def sent_s(self) -> float:
        """When the request was first sent to a backend."""
        for each in self.tries:
            if each.sent_s:
                return each.sent_s
        return 0.0

    def ms(self, at_s: float) -> float | None:
        """Milliseconds since the request began. None for what never happened."""
        return int((at_s - self.began_s) * 1e6) / 1000 if at_s else None
