"""One attempt at one backend: connect, send, choose the relay.

It is the first sink of the answer. The answer's head decides which relay takes over. It ends once
and tells its exchange: None for success, or the BackendError, which says whether another backend
may try. Its exchange has the clock, and looks at it when it is due.
"""

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Final

from penstock.balancing.lease import Lease
from penstock.balancing.outline import Steps
from penstock.health.probes import KEY_REFUSED
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.json_relay import JsonRelay
from penstock.proxy.data.own_headers import headers_upstream
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.relay import BUSY, Passage, Relay, StoredStream, of_gateway
from penstock.proxy.data.request import Request, hint_of
from penstock.proxy.errors.backend import (
    AnswerCut,
    BackendBusy,
    BackendError,
    BackendGone,
    BackendHung,
    BackendRefused,
    BackendTimeout,
    ConnectFailed,
    ConnectionRefused,
    ConnectionReset,
    KeyRefused,
    NotHere,
    StreamBroken,
)
from penstock.proxy.telemetry.pool_metrics import Histogram
from penstock.proxy.wire.connection import BackendConnection
from penstock.proxy.wire.edit import spliced_bytes, splices
from penstock.proxy.wire.forwarded_head import forwarded_request_head
from penstock.proxy.wire.heads import ResponseHead
from penstock.proxy.wire.pool import ConnectionPool, NoDescriptors

logger = logging.getLogger(__name__)

# The first byte of a plain answer comes after its last token. So its timeout includes its
# output at 10 tokens/s. An engine slower than that is hung.
PLAIN_S_PER_TOKEN: Final = 0.1
PLAIN_TOKENS_UNKNOWN: Final = 32_768
# After this time a reset on a reused connection is not a late close: a server that closed the idle
# connection before the request arrived resets it after one round trip, and none is longer.
IDLE_RESET_S: Final = 0.25
# How often a request without an answer sees whether probes have found that its backend hangs.
HUNG_LOOK_S: Final = 5.0


class AttemptOwner:
    """What an attempt reports to its exchange. A class, not a Protocol, because it is compiled."""

    def step(self, step: Callable[..., None], *arguments: object) -> None:
        """Run a function that may raise."""
        raise NotImplementedError

    def sent(self, now_s: float) -> None:
        """The request was sent."""
        raise NotImplementedError

    def begun(self) -> None:
        """The answer has begun: no other backend will need the body."""
        raise NotImplementedError

    def watch(self, now_s: float) -> None:
        """The attempt is to be looked at sooner: its answer has begun without a token."""
        raise NotImplementedError

    def made(self, response_id: str) -> None:
        """The backend's answer is a stored response with this id."""
        raise NotImplementedError

    def attempted(self, error: BackendError | None) -> None:
        """The attempt has ended. None: the whole answer was passed on. Else why it was not."""
        raise NotImplementedError

    def shed(self, reason: str) -> None:
        """A limit of the proxy ends the attempt."""
        raise NotImplementedError


class Attempt:
    """Sends a request to the lease's backend and relays the answer."""

    def __init__(
        self,
        owner: AttemptOwner,
        plane: DataPlane,
        request: Request,
        lease: Lease,
        itl_s: Histogram,
    ) -> None:
        """`itl_s` collects the times between tokens."""
        self._owner = owner
        self._plane = plane
        self._request = request
        self._itl_s = itl_s
        self._lease = lease
        # Of the configuration that chose the backend: it may be replaced while we connect.
        name = lease.backend.name
        self._credentials: tuple[bool, bytes | None] = plane.credentials[name]
        self._connections: ConnectionPool = plane.connections[name]
        self._connection: BackendConnection | None = None
        self._dialing: asyncio.Task[BackendConnection] | None = None
        self._ended = False
        self._first_byte_by_s = 0.0
        self._steps: Steps[None] | None = None  # what is left to do on the answer's end
        self.resent = False  # the request went out on a reused connection that was then reset
        self.relay: Relay | None = None

    def begin(self) -> None:
        """Send the request now on an idle connection, or else connect first."""
        connection = self._connections.take_idle(self._request.head.credentials)
        if connection is not None:
            self._send(connection)
        else:
            self._dial()

    def abort(self) -> None:
        """Let go of the backend now. The exchange is told nothing more."""
        self._ended = True
        self._steps = None
        if self.relay is not None:
            self.relay.let_go()
        if self._dialing is not None:
            self._dialing.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and connection.sink is not None:
            connection.abort()  # its answer has not ended: this frees the engine

    def pause(self) -> None:
        self._lease.held_up = True
        if self._connection is not None:
            self._connection.pause()

    @property
    def behind_bytes(self) -> int:
        """What was read of the answer and not yet taken."""
        return self._connection.behind_bytes if self._connection is not None else 0

    def resume(self) -> None:
        if self._connection is not None:
            if self.relay is not None:
                self.relay.last_byte_s = self._request.now()  # the client caused the silence
            self._connection.resume()

    def _dial(self) -> None:
        self._dialing = self._connections.loop.create_task(self._connections.dial())
        self._dialing.add_done_callback(self._dialed)

    def _dialed(self, dialing: asyncio.Task[BackendConnection]) -> None:
        self._dialing = None
        if dialing.cancelled():
            return
        error = dialing.exception()
        if self._ended:
            if error is None:
                dialing.result().abort()  # it opened in the turn in which the attempt ended
        elif error is None:
            self._lease.backend.round_trip_s = self._connections.round_trip_s
            self._owner.step(self._send, dialing.result())
        elif isinstance(error, ConnectionRefused) and self.resent:
            self._end(BackendGone())
        elif isinstance(error, BackendError):
            self._end(error)
        elif isinstance(error, NoDescriptors):
            self._owner.shed("descriptors")
        else:
            logger.error("dialing failed", exc_info=error)
            self._end(ConnectFailed())

    def _send(self, connection: BackendConnection) -> None:
        request = self._request
        self._connection = connection
        forwards_key, authorization = self._credentials
        connection.credentials = request.head.credentials
        body = request.body
        replaced = splices(body, request.edits, request.ask.places)
        head = forwarded_request_head(
            request.head,
            authority=self._connections.authority,
            prefix=self._connections.prefix,
            peer=request.peer,
            added=headers_upstream(self._plane, request),
            length=spliced_bytes(body, replaced),
            authorization=authorization,
            forwards_key=forwards_key,
        )
        now_s = self._request.now()
        request.record.tries[-1].sent(now_s)
        self._first_byte_by_s = now_s + self._first_byte_s()
        self._owner.sent(now_s)
        method, client = request.head.method, self._lease.ask.client
        connection.send(head, body, self, method=method, sender=client, replaced=replaced)
        if request.paused:
            connection.pause()

    def _first_byte_s(self) -> float:
        """The time allowed until the first token, or until the first byte of a plain answer."""
        ask, timeouts = self._request.ask, self._request.timeouts
        allowed_s = timeouts.first_byte_s
        allowed_s += timeouts.first_byte_s_per_1k_tokens * ask.prompt_tokens / 1000
        if ask.generates and not ask.stream:
            tokens = ask.max_tokens or PLAIN_TOKENS_UNKNOWN
            # At best all of them at once. At most the time that one answer may take in any case.
            answers_tokens = tokens * ask.prompts * ask.choices
            allowed_s += PLAIN_S_PER_TOKEN * max(tokens, min(answers_tokens, PLAIN_TOKENS_UNKNOWN))
        return allowed_s

    # The first sink of the answer --------------------------------------------------------

    def head(self, head: ResponseHead) -> None:
        """Choose the relay by the answer's head, if it does not mean a failure."""
        request, connection = self._request, self._connection
        assert connection is not None
        if head.status >= 300 and (head.status in BUSY or of_gateway(head.status)):
            self._end(BackendBusy(hint_of(head)) if head.status in BUSY else BackendRefused())
            return
        forwards_key, own_key = self._credentials
        if head.status in KEY_REFUSED and own_key is not None and not forwards_key:
            self._end(KeyRefused())
            return
        if head.status == 404 and request.anywhere:
            self._end(NotHere())
            return
        relay = self.relay = self._relay_for(head, connection)
        request.record.tries[-1].first_byte_s = relay.last_byte_s
        request.record.streamed = isinstance(relay, EventRelay)
        connection.sink = relay
        relay.begin()

    def _relay_for(self, head: ResponseHead, connection: BackendConnection) -> Relay:
        request = self._request
        passage = Passage(
            request.answer,
            self._lease,
            request.endpoint.dialect,
            request.now,
            ended=self._end,
            begun=self._begun,
            opened=self._owner.watch,
            made=self._owner.made,
            in_turns=self._take_turns,
            source=connection,
        )
        kind = b"" if head.encoded else head.content_type
        if kind == b"text/event-stream" and head.status == 200:
            if not request.endpoint.work.engine:
                return StoredStream(head, passage)
            bare, hides = request.kept is not None, request.hides_usage
            return EventRelay(head, passage, self._itl_s, hide_usage=hides, bare_before=bare)
        if kind == b"application/json" or head.status == 500 or request.answer.started:
            return JsonRelay(head, passage, reports_500=request.kept is None)
        return Relay(head, passage)

    def _begun(self) -> None:
        """The answer has begun. A body that is not yet sent whole still counts as its client's."""
        request, first_s = self._request, self._lease.first_token_s
        if first_s is not None:
            record = request.record
            record.tries[-1].first_token_s = first_s
            if request.times is not None:
                # Without what came before: a slow client is no slow GPU, nor is a failed attempt.
                request.times.backend.lately.first_token(first_s - self._lease.began_s, first_s)
        if self._connection is None or not self._connection.unsent:
            self._owner.begun()

    def body(self, data: bytes) -> None:
        raise AssertionError("a body comes after its head")

    def end(self) -> None:
        raise AssertionError("an answer ends after its head")

    def lost(self, error: BackendError) -> None:
        if isinstance(error, ConnectionReset) and self._closed_while_idle():
            # The backend did not receive the request, and is not to blame: send it once more.
            self._connection = None
            self.resent = True
            self._dial()
        else:
            self._end(error)

    def _closed_while_idle(self) -> bool:
        """Whether a reset before the answer may mean that the idle connection was closed."""
        request, connection = self._request, self._connection
        reused = request.resends and connection is not None and connection.reused
        return reused and request.now() - request.record.tries[-1].sent_s <= IDLE_RESET_S

    def _take_turns(self, steps: Steps[None]) -> None:
        """Do the work on the end of a large answer in turns. Its connection is free again."""
        self._connection = None
        self._steps = steps
        self._connections.reads.scheduler.add(self._lease.ask.client, self._take_step)

    def _take_step(self) -> bool:
        if not self._ended:
            self._owner.step(self._go_on)
        return not self._ended and self._steps is not None

    def _go_on(self) -> None:
        if self._steps is not None and next(self._steps, False) is False:
            self._steps = None

    # Time and end --------------------------------------------------------------------------

    def _end(self, error: BackendError | None) -> None:
        if not self._ended:
            self.abort()
            self._owner.attempted(error)

    def due_s(self, now_s: float) -> float:
        """When to look at it again, at the latest."""
        if self._connection is None:
            return inf  # dialing has its own time
        relay, timeouts = self.relay, self._request.timeouts
        if relay is not None and relay.flows:
            due_s = self._silent_at_s(relay, now_s)
            if isinstance(relay, EventRelay) and not self._request.paused:
                due_s = min(due_s, relay.quiet_since_s + timeouts.hold_s)
            return due_s
        # After idle_s there may be a first token, and then silence counts.
        due_s = min(self._first_byte_by_s, now_s + min(HUNG_LOOK_S, timeouts.idle_s))
        return due_s if relay is None else min(due_s, relay.answering_s)

    def look(self, now_s: float, leaves: Callable[[Lease], bool]) -> None:
        """End it if its backend has taken too long, or if what waits there `leaves` it."""
        relay = self.relay
        if self._connection is None:
            return
        if relay is None or not relay.flows:
            if now_s >= self._first_byte_by_s:
                self._end(BackendTimeout())
            elif leaves(self._lease):
                self._end(BackendHung())
            elif relay is not None and now_s >= relay.answering_s:
                relay.answering_s = inf
                self._first_byte_by_s = max(
                    self._first_byte_by_s, now_s + self._request.timeouts.idle_s
                )
                self._lease.answering(now_s)
        elif now_s >= self._silent_at_s(relay, now_s):
            if relay.over:
                relay.end()
            else:
                self._end(StreamBroken("idle") if relay.committed else AnswerCut())
        elif isinstance(relay, EventRelay) and not self._request.paused:
            relay.look(self._request.timeouts.hold_s, now_s)

    def give_up(self, error: BackendError) -> None:
        """The time of its request is over."""
        if self._connection is None:
            self._lease.held_up = True  # it was not sent: its time says nothing of the engine
        self._end(error)

    def _silent_at_s(self, relay: Relay, now_s: float) -> float:
        """When the silence is too long. While the client takes nothing, the silence is its own."""
        since_s = now_s if self._request.paused else relay.last_byte_s
        return since_s + self._request.timeouts.idle_s
