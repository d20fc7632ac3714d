"""One request as its attempts see it: what to send, how to answer, how long it may take."""

import re
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.budget import Charge
from penstock.balancing.members import span_of
from penstock.balancing.outliers.crashing_requests import Mark, mark_of
from penstock.balancing.reader import FORMS
from penstock.balancing.routes.decision import Way
from penstock.conf.settings import TimeoutSettings
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.endpoints import Endpoint
from penstock.proxy.data.mirrors import Copy
from penstock.proxy.data.relay import Relay
from penstock.proxy.errors.backend import (
    BackendError,
    ClientOutOfTime,
    OutOfTime,
    StreamOutOfClientTime,
    StreamOutOfTime,
)
from penstock.proxy.telemetry.pool_metrics import Times
from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.waterfall import ASKED, server_timing
from penstock.proxy.tracing.trace import Trace
from penstock.proxy.wire.edit import Edits
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import RequestHead, ResponseHead

# An int of 64 bits and its place in a tuple.
HASH_BYTES: Final = 40
KEPT_BYTES_MIN: Final = 8_192
# A longer time than a day counts as no deadline.
SECONDS_MAX: Final = 86_400.0

# What is added to the client's time: its timer began later than ours, by a connect and a round
# trip, and its close takes another one.
MARGIN: Final = 0.05
MARGIN_MIN_S: Final = 0.2
MARGIN_MAX_S: Final = 2.0

_SECONDS: Final = re.compile(rb"[0-9]{1,6}(?:\.[0-9]{1,9})?")
_WHOLE: Final = b"x-request-timeout"
_SILENCE: Final = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout"})


class Request:
    """What a client asked for, and the record of what becomes of it."""

    def __init__(
        self,
        head: RequestHead,
        endpoint: Endpoint,
        answer: Answer,
        body: bytes,
        peer: bytes,
        record: Record,
        timeouts: TimeoutSettings,
        now: Callable[[], float],
        mark: Mark | None = None,
    ) -> None:
        """`mark`: if it is known already."""
        self._mark = mark
        self.now = now
        self.record = record
        self.head = head
        self.endpoint = endpoint
        self.answer = answer
        self.body = body
        self.edits: Edits = ()  # of the body, applied each time it is sent
        self.capped: int | None = None  # the most tokens of its answer, where that was cut
        self.peer = peer
        self.resends = True  # once more where a connection was just closed. False: it has had all
        self.paused = False  # the client takes less than was written
        self.hides_usage = False  # the backend is asked for usage that the client did not ask for
        self.kept: Relay | None = None  # a failed answer, for its client if none is better
        self.ask = Ask(head.path.decode("ascii"))  # replaced when the body is read
        self.times: Times | None = None  # of its model at the backend that it was last sent to
        self.charge: Charge | None = None  # what its tenant's budget was charged
        self.billed = False  # its engine goes on in the background: what it took is known later
        self.service_class = b""  # the name of its class, where that is not the default one
        self.priority = b""  # of its class, for vLLM. Empty: none is told
        self.label: str | None = None  # what the classifier says; None: nothing
        self.way: Way | None = None  # by its route; None: none matches
        self.copy: Copy | None = None  # of it, at the mirror of its route
        self.trace: Trace | None = None  # None without tracing
        self.stores = ""  # the id of the response that its backend stores
        self.timeouts = timeouts
        self.hold_s = record.received_s + timeouts.hold_s
        self.patience = Patience(head.headers, record.began_s, timeouts.total_s)
        if head.get(ASKED) == b"1":
            answer.timing = partial(_timing, record, now)

    @property
    def mark(self) -> Mark:
        """The mark of the request's bytes. It stays after the body is gone."""
        return self._mark or mark_of(self.head.path, self.body)

    @property
    def is_form(self) -> bool:
        """Whether its body is a multipart form."""
        return self.ask.path in FORMS

    def rank(self, priority: bytes) -> None:
        """Give it the priority of its class for engines, also in place of its own in the body."""
        self.priority = priority
        if span_of(self.ask.places, b"priority") is not None:
            others = [each for each in self.edits if each[0] != b"priority"]
            self.edits = (*others, (b"priority", priority))

    def decoded(self, body: bytes) -> None:
        """Go on with its decoded body."""
        self.body, self._mark = body, None
        self.head.headers = [each for each in self.head.headers if each[0] != b"content-encoding"]

    def forget_body(self) -> int:
        """Drop the body: no other backend will try, so nobody needs it.

        Returns what it still holds: a long head, and the hashes of a long prompt. Less than the
        least that counts is 0: whoever holds nothing may send a larger body.
        """
        self._mark = self.mark
        self.body, self.edits, self.ask.places = b"", (), ()
        kept_bytes = self.head.size_bytes + HASH_BYTES * len(self.ask.blocks)
        return kept_bytes if kept_bytes >= KEPT_BYTES_MIN else 0

    @property
    def anywhere(self) -> bool:
        """Whether only one backend holds what is asked for: after a 404 the next one is asked."""
        return self.endpoint.anywhere or self.ask.response_id is not None

    def pause(self) -> None:
        """The client takes less than was written."""
        self.paused = self.record.held_up = True
        self.record.stalls(self.now())

    def resume(self) -> None:
        """The client takes more again."""
        self.paused = False
        self.record.flows(self.now())


def _timing(record: Record, now: Callable[[], float]) -> bytes:
    return server_timing(record, now())


class Patience:
    """When a request must end: by the client's headers and by our `total_s`.

    When the client is gone, more work would only cost an engine. `x-request-timeout` limits the
    whole request. The OpenAI and Anthropic SDKs send their read timeout, the longest silence that
    they accept. It limits the time until the answer begins. After that, comments and tokens break
    the silence. All values are in seconds.

    The client's own timer should fire first, so that it sees its usual timeout. So the work ends a
    little later. A client that is still there then is told that its own time is over. No backend is
    blamed for that.
    """

    def __init__(self, headers: Headers, began_s: float, total_s: float | None) -> None:
        begun_s, whole_s = patience(headers)
        self._begun_s, self._whole_s, self._total_s = begun_s, whole_s, total_s or 0.0
        self._begin_by_s = began_s + begun_s + margin_s(begun_s) if begun_s else inf
        self._whole_by_s = began_s + whole_s + margin_s(whole_s) if whole_s else inf
        self._total_by_s = began_s + total_s if total_s else inf

    @property
    def begins_within_s(self) -> float:
        """How long the client waits for the beginning of an answer."""
        least_s = self._begun_s or inf
        if self._whole_s and self._whole_s < least_s:
            least_s = self._whole_s
        if self._total_s and self._total_s < least_s:
            least_s = self._total_s
        return least_s

    def next_s(self, *, started: bool) -> float:
        """When to check again. `started`: the client was sent a status."""
        whole_by_s = min(self._whole_by_s, self._total_by_s)
        return whole_by_s if started else min(whole_by_s, self._begin_by_s)

    def over(self, now_s: float, *, started: bool, committed: bool = False) -> BackendError | None:
        """The error that ends the request if its time is over. `committed`: it has a token."""
        if now_s >= self._whole_by_s:
            return StreamOutOfClientTime() if committed else ClientOutOfTime()
        if now_s >= self._begin_by_s and not started:
            return ClientOutOfTime()
        if now_s >= self._total_by_s:
            return StreamOutOfTime() if committed else OutOfTime()
        return None


def margin_s(wait_s: float) -> float:
    """How much longer than the client's own time a request may take."""
    return min(MARGIN_MAX_S, max(MARGIN_MIN_S, MARGIN * wait_s))


def patience(headers: Headers) -> tuple[float, float]:
    """(seconds until the answer must begin, seconds for all of it). 0.0 means not given.

    Of several headers the shortest time counts. Malformed, zero or more than a day: not given.
    """
    begun_s = whole_s = 0.0
    for name, value in headers:
        if name in _SILENCE:
            seconds = seconds_in(value)
            begun_s = min(begun_s or seconds, seconds or begun_s)
        elif name == _WHOLE:
            seconds = seconds_in(value)
            whole_s = min(whole_s or seconds, seconds or whole_s)
    return begun_s, whole_s


def hint_of(head: ResponseHead) -> float:
    """A backend's Retry-After in seconds. 0.0 without one. Dates are not read."""
    for name, value in head.headers:
        if name == b"retry-after":
            return seconds_in(value)
    return 0.0


def seconds_in(value: bytes) -> float:
    """Decimal seconds in a header's value. 0.0 for anything else or more than a day."""
    if _SECONDS.fullmatch(value) is None:
        return 0.0
    seconds = float(value)
    return seconds if seconds <= SECONDS_MAX else 0.0
