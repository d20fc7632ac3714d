"""Passes an answer's bytes to the client. The answer's head decides how.

An event stream is held until its first token (`event_relay.py`) and JSON until it is whole
(`json_relay.py`). Anything else is committed at its head. Until then a failure can be hidden.

An error can tell of the backend itself. A draining vLLM looks healthy and idle to every probe, but
fails requests within a millisecond. A vLLM whose engine died ends within a second. Both say so in
the error of the next request: as a 500, or as the first event of a 200.
"""

import re
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from penstock.balancing.lease import Lease
from penstock.balancing.outline import Steps
from penstock.proxy.data.answer import Answer
from penstock.proxy.dialects import Dialect
from penstock.proxy.dialects.dialect import Usage, whole_of
from penstock.proxy.errors.backend import (
    BackendBusy,
    BackendDraining,
    BackendError,
    BackendRefused,
    EngineDead,
    InternalFault,
    StreamBroken,
)
from penstock.proxy.wire.deadline import nothing
from penstock.proxy.wire.heads import ResponseHead
from penstock.proxy.wire.json_object import JsonObject

# Up to this size an answer is always held. A larger one only while the total of its backend
# (`Lease.keep`) has room.
FREE_BYTES: Final = 16_384
# The memory of each read or event beside its bytes.
OBJECT_BYTES: Final = 64
# The statuses of a backend that has too much to do.
BUSY: Final = frozenset({429, 503})
# How these messages of vLLM 0.32 begin: that of the executor behind its tokenizer, and that of
# its EngineDeadError. Text quoted inside another message cannot match, because a quote inside JSON
# text is escaped. In a stream there is a space after the colon.
_SAID: Final = re.compile(
    rb'"message": ?"(?:(cannot schedule new futures after shutdown)|EngineCore encountered)'
)


class Source(Protocol):
    """A backend's connection. `dear`: what comes next may take long to read."""

    dear: bool

    @property
    def behind_bytes(self) -> int:
        """The size of a read that is not yet taken whole."""


class Passage:
    """Where an answer goes, and who is told about it: what every relay is made of.

    `ended` is called once: with None when the whole answer was passed on, else with
    the error, which is retryable while nothing was committed. `begun` is called if
    the answer is committed before it is whole. `opened` is called when the relay has set
    its `answering_s`. `made` is called with the id of the stored response, if the answer
    is one. `in_turns` takes the steps of work that is too long for one turn of the loop.
    The backend's connection is not needed for it.
    """

    def __init__(
        self,
        answer: Answer,
        lease: Lease,
        dialect: Dialect,
        now: Callable[[], float],
        *,
        ended: Callable[[BackendError | None], None],
        begun: Callable[[], None],
        opened: Callable[[float], None],
        made: Callable[[str], None],
        in_turns: Callable[[Steps[None]], None],
        source: Source,
    ) -> None:
        self.answer = answer
        self.lease = lease
        self.dialect = dialect
        self.now = now
        self.ended = ended
        self.begun = begun
        self.opened = opened
        self.made = made
        self.in_turns = in_turns
        self.source = source


def _nobody(error: BackendError | None) -> None:
    """The receiver after a relay has reported: it reports once."""


class Relay:
    """Passes an answer on as it comes. The base of the other relays."""

    def __init__(self, head: ResponseHead, passage: Passage) -> None:
        self._head = head
        self._answer = passage.answer
        self._lease = passage.lease
        self._ended = passage.ended
        self._on_begun = passage.begun
        self._now = passage.now
        self.committed = False
        self.served = head.status < 300  # whether it is what the client asked for
        self.usage: Usage | None = None
        self.response_id = ""  # of the stored response that a whole answer tells
        # Whether its engine works on, also if nobody reads the answer.
        self.goes_on = self.served and passage.lease.ask.background
        self.last_byte_s = self._now()
        # When the backend counts as answering, if no token has come by then.
        self.answering_s = inf

    def begin(self) -> None:
        """The head was read: commit at once."""
        ask = self._lease.ask
        if ask.engine and not _may_serve(self._head, generates=ask.generates):
            self.served = False
        self.committed = True
        self._on_begun()
        self._answer.relay(self._head, self._head.length)

    def head(self, head: ResponseHead) -> None:
        raise AssertionError("an answer has one head")

    def body(self, data: bytes) -> None:
        self.last_byte_s = self._now()
        if self.served and self._lease.prefilling:
            self._lease.first_token(self.last_byte_s)
        self._answer.write(data)

    def end(self) -> None:
        if not self._answer.body_bytes:
            self.served = False
        self._answer.finish()
        self._report(None)

    def lost(self, error: BackendError) -> None:
        self._report(StreamBroken(error.reason, error) if self.committed else error)

    @property
    def flows(self) -> bool:
        """Whether more of the answer must come within `idle_s`."""
        return self.committed

    @property
    def over(self) -> bool:
        """Whether the answer has said that it is whole, though its framing has not ended."""
        return False

    @property
    def refused_midway(self) -> bool:
        """Whether a stream of tokens ended with an error that the request itself caused."""
        return False

    @property
    def status(self) -> int:
        """The status that the backend answered with."""
        return self._head.status

    @property
    def meant_status(self) -> int:
        """The same, or that of the error with which its stream begins."""
        return self.status

    @property
    def made_tokens(self) -> int:
        """The tokens that the answer shows. 0 if it shows none, or was not read."""
        return 0

    @property
    def counts(self) -> Usage | None:
        """The tokens that the backend has counted, or those that have come if they are more."""
        return self.usage

    @property
    def is_over(self) -> bool:
        """Whether the answer tells of a stored response that is made no more."""
        return bool(self.response_id) and not self.goes_on

    @property
    def is_queued(self) -> bool:
        """Whether it tells of a response on which its engine goes on, and nothing of it yet."""
        return bool(self.response_id) and self.goes_on

    def pass_on(self) -> None:
        """Pass on an answer that was reported as a failure: no backend gave a better one."""
        raise AssertionError("this answer was not kept")

    def let_go(self) -> None:
        """Nobody wants the answer any more, or all of it was passed on."""
        self._ended, self._on_begun = _nobody, nothing  # they lead to the attempt, which leads here

    def _report(self, error: BackendError | None) -> None:
        # Report once, then forget the receiver. The attempt holds this relay, and a cycle for each
        # request would be left to the garbage collector.
        ended, self._ended, self._on_begun = self._ended, _nobody, nothing
        ended(error)

    def _commit(self, body: bytes, now_s: float) -> None:
        self.committed = True
        if self.served and not self.is_queued:  # an API server tells that, also if its engine hangs
            self._lease.first_token(now_s)
        self._answer.relay(self._head, self._head.length, body)


def _may_serve(head: ResponseHead, *, generates: bool) -> bool:
    """Whether a body of this length and type may be an engine's answer."""
    if generates:  # the content is encoded, otherwise another relay would handle it
        return head.content_type in (b"application/json", b"text/event-stream")
    return head.length != 0 and head.content_type != b"text/html"


class StoredStream(Relay):
    """Passes on a stored response that is read as a stream, which need not have a token.

    Its last event tells what the response took.
    """

    def __init__(self, head: ResponseHead, passage: Passage) -> None:
        super().__init__(head, passage)
        self._dialect = passage.dialect
        self._counts = JsonObject(passage.dialect.counts_in, 2)

    def body(self, data: bytes) -> None:
        super().body(data)
        self._counts.feed(data)

    @property
    def counts(self) -> Usage | None:
        whole = whole_of(b'{"%b":%b}' % (self._dialect.counts_in, self._counts.text))
        return self._dialect.usage(whole) if whole is not None else None

    @property
    def is_over(self) -> bool:
        return self.counts is not None


def diagnosis(error: bytes) -> BackendError | None:
    """The failure of the backend that the text of an error reveals, if any."""
    said = _SAID.search(error)
    if said is None:
        return None
    return BackendDraining() if said[1] else EngineDead()


def of_event(event: bytes, status: int) -> BackendError:
    """The failure of the backend that an error event of a stream means."""
    said = diagnosis(event)
    if said is not None:
        return said
    if status in BUSY:
        return BackendBusy()
    return InternalFault() if status == 500 else BackendRefused()


def of_gateway(status: int) -> bool:
    """Whether a status means that the backend does not serve, rather than a bad request.

    A redirect counts too: its target is in the backend's own network. vLLM's 500 and 501 do not
    count, because the request may cause them.
    """
    return status > 501 or (300 <= status < 400 and status != 304)
