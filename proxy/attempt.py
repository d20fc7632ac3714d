"""One attempt at one backend: dial, send, watch the clock, choose the relay.

It is the first sink of the answer: the head decides which relay takes over. It
ends once, and tells its exchange: None, or the BackendError that says whether
another backend may try. Its deadline covers the first token, the pings of a
hold, the silence between bytes, and the request's total time.
"""

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from balancing.lease import Lease
from health.probes import KEY_REFUSED
from proxy.connection_pool import ConnectionPool, NoDescriptors
from proxy.errors import (
    BackendBusy,
    BackendError,
    BackendGone,
    BackendRefused,
    BackendTimeout,
    ConnectFailed,
    ConnectionRefused,
    ConnectionReset,
    KeyRefused,
    NotHere,
    StreamBroken,
)
from proxy.event_relay import EventRelay
from proxy.heads import ResponseHead, forwarded_request_head
from proxy.patience import hint_of
from proxy.relay import JsonRelay, Relay
from proxy.upstream import BackendConnection

if TYPE_CHECKING:
    from proxy.exchange import Exchange

logger = logging.getLogger(__name__)

PING_S: Final = 15.0
# A plain answer's first byte comes after its last token, so it is allowed its
# output too, at 10 tokens/s: slower than any engine in use is hung.
PLAIN_S_PER_TOKEN: Final = 0.1
PLAIN_TOKENS_UNKNOWN: Final = 32_768
# How long after its request the reset of a connection that had been idle may come: its server
# closed it before the request arrived, so a reset is one round trip away. None on Earth is
# longer than this; an engine that works on a request for longer has received it.
IDLE_RESET_S: Final = 0.25


class Attempt:
    """Sends `exchange`'s request to the lease's backend and relays the answer."""

    __slots__ = (
        "_connection",
        "_connections",
        "_credentials",
        "_dialing",
        "_ended",
        "_exchange",
        "_first_byte_by_s",
        "_lease",
        "_sent_s",
        "relay",
        "resent",
    )

    def __init__(
        self,
        exchange: "Exchange",
        lease: Lease,
        connections: ConnectionPool,
        credentials: tuple[bool, bytes | None],
    ) -> None:
        """`credentials`: whether the client's key goes along, and the one in its place."""
        self._exchange = exchange
        self._credentials = credentials
        self._lease = lease
        self._connections = connections
        self._connection: BackendConnection | None = None
        self._dialing: asyncio.Task[BackendConnection] | None = None
        self._ended = False
        self._first_byte_by_s = 0.0
        self._sent_s = 0.0
        self.resent = False  # a reused connection was reset when the request had gone out on it
        self.relay: Relay | None = None

    def begin(self) -> None:
        """Send the request now if a connection is idle, else when one is open."""
        connection = self._connections.take_idle(self._exchange.head.credentials)
        if connection is not None:
            self._send(connection)
        else:
            self._dial()

    def abort(self) -> None:
        """Let go of the backend now; the exchange hears nothing more."""
        self._ended = True
        if self._dialing is not None:
            self._dialing.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and connection.sink is not None:
            connection.abort()  # not ended by itself: free its engine

    def pause(self) -> None:
        """The client cannot take more: stop reading the answer."""
        self._lease.held_up()
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            if self.relay is not None:
                self.relay.last_byte_s = monotonic()  # the silence was the client's
            self._connection.resume()

    def slept(self, time_s: float) -> None:
        """The proxy did not run for so long: what came meanwhile has yet to be read."""
        self._first_byte_by_s += time_s
        self._lease.held_up()
        if self.relay is not None:
            self.relay.last_byte_s += time_s
        if self._connection is not None:
            self._connection.deadline.delay(time_s)

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
                dialing.result().abort()  # it opened in the turn that ended the attempt
        elif error is None:
            self._exchange.step(self._send, dialing.result())
        elif isinstance(error, ConnectionRefused) and self.resent:
            self._end(BackendGone())
        elif isinstance(error, BackendError):
            self._end(error)
        elif isinstance(error, NoDescriptors):
            self._exchange.shed("descriptors")
        else:
            logger.error("dialing failed", exc_info=error)
            self._end(ConnectFailed())

    def _send(self, connection: BackendConnection) -> None:
        exchange = self._exchange
        self._connection = connection
        forwards_key, authorization = self._credentials
        connection.credentials = exchange.head.credentials
        body, edit = exchange.body, exchange.edit
        head = forwarded_request_head(
            exchange.head,
            authority=self._connections.authority,
            peer=exchange.peer,
            request_id=exchange.request_id_upstream,
            length=len(body) if edit is None else edit.at + len(edit.ending),
            authorization=authorization,
            forwards_key=forwards_key,
        )
        now_s = monotonic()
        exchange.sent(now_s)
        self._sent_s = now_s
        self._first_byte_by_s = now_s + self._first_byte_s()
        connection.on_deadline = self._tick
        self._watch(connection)
        connection.send(head, body, self, method=exchange.head.method, edit=edit)
        if exchange.paused:
            connection.pause()

    def _first_byte_s(self) -> float:
        """Time allowed until the first token, or until a plain answer's only one."""
        ask = self._exchange.ask
        timeouts = self._exchange.timeouts
        allowed_s = timeouts.first_byte_s + (
            timeouts.first_byte_s_per_1k_tokens * ask.prompt_tokens / 1000
        )
        if ask.generates and not ask.stream:
            tokens = ask.max_tokens or PLAIN_TOKENS_UNKNOWN
            # All at one time at best; no more than what one answer may take in any case.
            answers_tokens = tokens * ask.prompts * ask.choices
            allowed_s += PLAIN_S_PER_TOKEN * max(tokens, min(answers_tokens, PLAIN_TOKENS_UNKNOWN))
        return allowed_s

    # The first sink of the answer --------------------------------------------------------

    def head(self, head: ResponseHead) -> None:
        """Let the answer's own head choose its relay."""
        exchange = self._exchange
        connection = self._connection
        assert connection is not None
        if head.status >= 300 and _of_gateway(head.status):
            busy = head.status == 503
            self._end(BackendBusy(hint_of(head)) if busy else BackendRefused())
            return
        forwards_key, own_key = self._credentials
        if head.status in KEY_REFUSED and own_key is not None and not forwards_key:
            self._end(KeyRefused())
            return
        if head.status == 404 and exchange.anywhere:
            self._end(NotHere())
            return
        streams = head.content_type == b"text/event-stream" and head.status == 200
        # Where no engine works a stream is what was stored of one, and need not have a token.
        if streams and not head.encoded and exchange.route.engine:
            self.relay = EventRelay(
                head,
                exchange.answer,
                self._lease,
                self._end,
                exchange.begun,
                exchange.route.dialect,
                exchange.itl_s,
                exchange.made,
                hide_usage=exchange.hides_usage,
                bare_before=exchange.bare is not None,
            )
        elif exchange.answer.started or (
            head.content_type == b"application/json" and not head.encoded
        ):
            self.relay = JsonRelay(
                head,
                exchange.answer,
                self._lease,
                self._end,
                exchange.begun,
                exchange.route.dialect,
                exchange.made,
            )
        else:
            self.relay = Relay(head, exchange.answer, self._lease, self._end, exchange.begun)
        connection.sink = self.relay
        self.relay.begin()

    def body(self, data: bytes) -> None:
        raise AssertionError("a body comes after its head")

    def end(self) -> None:
        raise AssertionError("an answer ends after its head")

    def lost(self, error: BackendError) -> None:
        if isinstance(error, ConnectionReset) and self._closed_while_idle():
            # Nobody received the request, which says nothing of the backend: once more.
            self._connection = None
            self.resent = True
            self._dial()
        else:
            self._end(error)

    def _closed_while_idle(self) -> bool:
        """Whether a reset before the answer's first byte may be that of an idle connection."""
        connection = self._connection
        reused = connection is not None and connection.reused
        return reused and monotonic() - self._sent_s <= IDLE_RESET_S

    # Time and end --------------------------------------------------------------------------

    def _end(self, error: BackendError | None) -> None:
        if not self._ended:
            self.abort()
            self._exchange.attempted(error)

    def _watch(self, connection: BackendConnection) -> None:
        exchange = self._exchange
        # Looks again after idle_s: by then there may be a first token, and silence counts.
        idle_s = monotonic() + exchange.timeouts.idle_s
        over_s = exchange.patience.next_s(started=exchange.answer.started)
        next_s = min(self._first_byte_by_s, over_s, idle_s)
        if exchange.ask.stream:
            next_s = min(next_s, exchange.hold_s)
        connection.deadline.set(next_s)

    def _tick(self) -> None:
        exchange = self._exchange
        connection = self._connection
        if connection is None:
            return
        now_s = monotonic()
        committed = self.relay is not None and self.relay.committed
        patience = exchange.patience
        over = patience.over(now_s, started=exchange.answer.started, committed=committed)
        if over is not None:
            self._end(over)
        elif self.relay is not None and committed:
            quiet_s = exchange.timeouts.idle_s
            ends_s = (now_s if exchange.paused else self.relay.last_byte_s) + quiet_s
            if now_s >= ends_s and self.relay.over:
                self.relay.end()
            elif now_s >= ends_s:
                self._end(StreamBroken("idle"))
            else:
                connection.deadline.set(min(ends_s, patience.next_s(started=True)))
        elif now_s >= self._first_byte_by_s:
            self._end(BackendTimeout())
        else:
            if exchange.ask.stream and now_s >= exchange.hold_s:
                exchange.answer.hold()
                exchange.hold_s = now_s + PING_S
            self._watch(connection)


def _of_gateway(status: int) -> bool:
    """Whether a status speaks of a backend that is not serving, not of the request.

    A redirection too: its target is of the backend's own network. vLLM's 500 and 501 may be the
    request's doing.
    """
    return status > 501 or (300 <= status < 400 and status != 304)
