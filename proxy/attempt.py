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
from proxy.errors import (
    BackendBusy,
    BackendError,
    BackendGone,
    BackendRefused,
    BackendTimeout,
    ConnectFailed,
    ConnectionRefused,
    ConnectionReset,
    NotHere,
    OutOfTime,
    StreamBroken,
    StreamOutOfTime,
)
from proxy.heads import ResponseHead, forwarded_request_head
from proxy.patience import hint_of
from proxy.relay import EventRelay, JsonRelay, Relay
from proxy.upstream import BackendConnection, ConnectionPool, NoDescriptors

if TYPE_CHECKING:
    from proxy.exchange import Exchange

logger = logging.getLogger(__name__)

PING_S: Final = 15.0
# A plain answer's first byte comes after its last token, so it is allowed its
# output too, at 10 tokens/s: slower than any engine in use is hung.
PLAIN_S_PER_TOKEN: Final = 0.1
PLAIN_TOKENS_UNKNOWN: Final = 32_768
# Gateway statuses speak of a backend that is not serving, not of the request.
_GATEWAY_STATUSES: Final = frozenset({502, 503, 504})


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
        "_reset",
        "relay",
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
        self._reset = False  # a reused connection was, after the request had gone out on it
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
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            if self.relay is not None:
                self.relay.last_byte_s = monotonic()  # the silence was the client's
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
                dialing.result().abort()  # it opened in the turn that ended the attempt
        elif error is None:
            self._exchange.step(self._send, dialing.result())
        elif isinstance(error, ConnectionRefused) and self._reset:
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
        head = forwarded_request_head(
            exchange.head,
            authority=self._connections.authority,
            peer=exchange.peer,
            request_id=exchange.request_id_upstream,
            length=len(exchange.body),
            authorization=authorization,
            forwards_key=forwards_key,
        )
        now_s = monotonic()
        exchange.sent(now_s)
        self._first_byte_by_s = now_s + self._first_byte_s()
        connection.on_deadline = self._tick
        self._watch(connection)
        connection.send(head, exchange.body, self, method=exchange.head.method)
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
            allowed_s += PLAIN_S_PER_TOKEN * tokens
        return allowed_s

    # The first sink of the answer --------------------------------------------------------

    def head(self, head: ResponseHead) -> None:
        """Let the answer's own head choose its relay."""
        exchange = self._exchange
        connection = self._connection
        assert connection is not None
        if head.status in _GATEWAY_STATUSES:
            busy = head.status == 503
            self._end(BackendBusy(hint_of(head)) if busy else BackendRefused())
            return
        if head.status == 404 and exchange.anywhere:
            self._end(NotHere())
            return
        if head.content_type == b"text/event-stream" and head.status == 200 and not head.encoded:
            self.relay = EventRelay(
                head,
                exchange.answer,
                self._lease,
                self._end,
                exchange.route.dialect,
                exchange.itl_s,
                exchange.made,
                hide_usage=exchange.hides_usage,
            )
        elif exchange.answer.started or (
            head.content_type == b"application/json" and not head.encoded
        ):
            self.relay = JsonRelay(
                head,
                exchange.answer,
                self._lease,
                self._end,
                exchange.route.dialect,
                exchange.made,
            )
        else:
            self.relay = Relay(head, exchange.answer, self._lease, self._end)
        connection.sink = self.relay
        self.relay.begin()

    def body(self, data: bytes) -> None:
        raise AssertionError("a body comes after its head")

    def end(self) -> None:
        raise AssertionError("an answer ends after its head")

    def lost(self, error: BackendError) -> None:
        connection = self._connection
        if isinstance(error, ConnectionReset) and connection is not None and connection.reused:
            # It closed while idle, which says nothing of the backend: once more.
            self._connection = None
            self._reset = True
            self._dial()
        else:
            self._end(error)

    # Time and end --------------------------------------------------------------------------

    def _end(self, error: BackendError | None) -> None:
        if not self._ended:
            self.abort()
            self._exchange.attempted(error)

    def _watch(self, connection: BackendConnection) -> None:
        exchange = self._exchange
        # Looks again after idle_s: by then there may be a first token, and silence counts.
        idle_s = monotonic() + exchange.timeouts.idle_s
        next_s = min(self._first_byte_by_s, exchange.out_of_time_s, idle_s)
        if exchange.ask.stream:
            next_s = min(next_s, exchange.hold_s)
        if not exchange.answer.started:
            next_s = min(next_s, exchange.begin_by_s)
        connection.deadline.set(next_s)

    def _tick(self) -> None:
        exchange = self._exchange
        connection = self._connection
        if connection is None:
            return
        now_s = monotonic()
        committed = self.relay is not None and self.relay.committed
        if now_s >= exchange.out_of_time_s:
            self._end(StreamOutOfTime() if committed else OutOfTime())
        elif now_s >= exchange.begin_by_s and not exchange.answer.started:
            self._end(OutOfTime())
        elif self.relay is not None and committed:
            quiet_s = exchange.timeouts.idle_s
            ends_s = (now_s if exchange.paused else self.relay.last_byte_s) + quiet_s
            if now_s >= ends_s and self.relay.over:
                self.relay.end()
            elif now_s >= ends_s:
                self._end(StreamBroken("idle"))
            else:
                connection.deadline.set(min(ends_s, exchange.out_of_time_s))
        elif now_s >= self._first_byte_by_s:
            self._end(BackendTimeout())
        else:
            if exchange.ask.stream and now_s >= exchange.hold_s:
                exchange.answer.hold()
                exchange.hold_s = now_s + PING_S
            self._watch(connection)
