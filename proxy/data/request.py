"""One request as its attempts see it: what to send, how to answer, how long it may take."""

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.budgets.budget import Charge
from penstock.balancing.outliers.crashing_requests import Mark, mark_of
from penstock.balancing.places import span_of
from penstock.balancing.reader import FORMS
from penstock.balancing.routes.decision import Way
from penstock.conf.settings import TimeoutSettings
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.endpoints import Endpoint
from penstock.proxy.data.mirrors import Copy
from penstock.proxy.data.patience import Patience
from penstock.proxy.data.relay import Relay
from penstock.proxy.telemetry.pool_metrics import Times
from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.waterfall import ASKED, server_timing
from penstock.proxy.tracing.trace import Trace
from penstock.proxy.wire.content_coding import BOM
from penstock.proxy.wire.edit import Edits, Splices, splices
from penstock.proxy.wire.heads import RequestHead

# An int of 64 bits and its place in a tuple.
HASH_BYTES: Final = 40
KEPT_BYTES_MIN: Final = 8_192


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
    def coded(self) -> bool:
        """Whether its body must be decoded before it is read."""
        return bool(self.body) and (self.head.coding != b"" or self.body.startswith(BOM))

    @property
    def mark(self) -> Mark:
        """The mark of the request's bytes. It stays after the body is gone."""
        return self._mark or mark_of(self.head.path, self.body)

    @property
    def is_form(self) -> bool:
        """Whether its body is a multipart form."""
        return self.ask.path in FORMS

    @property
    def splices(self) -> Splices:
        """What its backend gets in place of parts of the body."""
        return splices(self.body, self.edits, self.ask.places)

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

    def forget_body(self) -> None:
        """Drop the body: no other backend will try, so nobody needs it."""
        self._mark = self.mark
        self.body, self.edits, self.ask.places = b"", (), ()

    @property
    def kept_bytes(self) -> int:
        """What it holds without its body: a long head, and the hashes of a long prompt.

        Less than the least that counts is 0: whoever holds nothing may send a larger body.
        """
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
