"""One copy of a request at the backend of a mirror: sent, read, thrown away.

It never comes near a client. It has a lease, so its load is counted at its backend. Its times and
counts teach nothing, and its failures are not counted against the backend: probes find out.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.balancing.lease import Lease
from penstock.proxy.dialects import Dialect
from penstock.proxy.dialects.dialect import Sign, Usage
from penstock.proxy.dialects.whole import SMALL_BYTES, whole_of
from penstock.proxy.errors.backend import BackendError
from penstock.proxy.wire.connection import BackendConnection
from penstock.proxy.wire.edit import Splices, spliced_bytes
from penstock.proxy.wire.event_ends import after_first, after_last, split
from penstock.proxy.wire.forwarded_head import forwarded_request_head
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import RequestHead, ResponseHead
from penstock.proxy.wire.pool import ConnectionPool

logger = logging.getLogger(__name__)

# What is held of a stream: an unfinished event before the first token, and the end, for the usage.
# (A responses stream repeats its output in its last event. If that is larger, it tells no usage.)
BEGINNING_BYTES: Final = 65_536
TAIL_BYTES: Final = 8_192
# The pieces of a large body take the turns of this sender, whoever's copy it is. No client's name.
SENDER: Final = "\0mirror"


class Mirrored:
    """What is sent. The body is the original's own bytes, and no second copy of them."""

    __slots__ = ("added", "body", "dialect", "head", "key", "peer", "replaced")

    def __init__(
        self,
        head: RequestHead,
        body: bytes,
        replaced: Splices,
        added: Headers,
        dialect: Dialect,
        peer: bytes,
        key: tuple[bool, bytes | None],
    ) -> None:
        """`key`: whether the client's is sent, and the pool's own if there is one."""
        self.head = head
        self.body = body
        self.replaced = replaced
        self.added = added
        self.dialect = dialect
        self.peer = peer
        self.key = key


class Limits:
    """The times of a copy: until its first token, without a byte after that, and of it all."""

    __slots__ = ("first_s", "idle_s", "total_s")

    def __init__(self, first_s: float, idle_s: float, total_s: float) -> None:
        self.first_s = first_s
        self.idle_s = idle_s
        self.total_s = total_s


class Copy:
    """A copy under way, and the sink of its answer. `result` is empty until it has ended."""

    __slots__ = (
        "_connection",
        "_connections",
        "_dialing",
        "_ended",
        "_limits",
        "_now",
        "_parts",
        "_streams",
        "_tail",
        "began_s",
        "body_bytes",
        "first_token_s",
        "last_byte_s",
        "lease",
        "mirrored",
        "result",
        "sent_s",
        "usage",
    )

    def __init__(
        self,
        mirrored: Mirrored,
        lease: Lease,
        connections: ConnectionPool,
        limits: Limits,
        now: Callable[[], float],
        ended: Callable[["Copy"], None],
    ) -> None:
        """`ended` is called once."""
        self.mirrored = mirrored
        self.lease = lease
        lease.held_up = True  # its time teaches nothing
        self._connections = connections
        self._limits = limits
        self._now = now
        self._ended = ended
        self._connection: BackendConnection | None = None
        self._dialing: asyncio.Task[BackendConnection] | None = None
        self._streams = False
        self._parts: list[bytes] = []  # of a plain answer, unless it is large
        self._tail = b""  # of a stream
        self.body_bytes = 0
        self.began_s = self.last_byte_s = now()
        self.sent_s = self.first_token_s = 0.0
        self.usage: Usage | None = None
        self.result = ""

    def begin(self) -> None:
        """Send it on an idle connection, or connect first."""
        connection = self._connections.take_idle(self.mirrored.head.credentials)
        if connection is not None:
            self._send(connection)
        else:
            self._dialing = self._connections.loop.create_task(self._connections.dial())
            self._dialing.add_done_callback(self._dialed)

    def _dialed(self, dialing: asyncio.Task[BackendConnection]) -> None:
        self._dialing = None
        if dialing.cancelled():
            return
        error = dialing.exception()
        if error is not None:
            self.end("failed")
        elif self.result:
            dialing.result().abort()  # it opened in the turn in which the copy ended
        else:
            self._send(dialing.result())

    def _send(self, connection: BackendConnection) -> None:
        self._connection, mirrored = connection, self.mirrored
        head, body, replaced = mirrored.head, mirrored.body, mirrored.replaced
        connection.credentials = head.credentials
        forwards_key, own_key = mirrored.key
        written = forwarded_request_head(
            head,
            authority=self._connections.authority,
            prefix=self._connections.prefix,
            peer=mirrored.peer,
            added=mirrored.added,
            length=spliced_bytes(body, replaced),
            authorization=own_key,
            forwards_key=forwards_key,
        )
        self.sent_s = self.last_byte_s = self._now()
        connection.send(written, body, self, method=head.method, sender=SENDER, replaced=replaced)

    @property
    def holds_body(self) -> bool:
        """Whether the body is still needed."""
        return not self.result and (self._connection is None or self._connection.unsent)

    def forget_body(self) -> None:
        """It is sent."""
        self.mirrored.body = b""

    @property
    def due_s(self) -> float:
        """When it has taken too long, if nothing more comes."""
        limits = self._limits
        over_s = self.began_s + limits.total_s
        if self.first_token_s:
            return min(over_s, self.last_byte_s + limits.idle_s)
        return min(over_s, self.began_s + limits.first_s)

    # The sink of its answer ---------------------------------------------------------------------

    def head(self, head: ResponseHead) -> None:
        """Nothing is tried again: what is no answer ends it."""
        self.last_byte_s = self._now()
        if head.status != 200:
            self.end("failed" if head.status >= 500 else "refused")
            return
        self._streams = head.content_type == b"text/event-stream"

    def body(self, data: bytes) -> None:
        now_s = self.last_byte_s = self._now()
        self.body_bytes += len(data)
        if not self._streams:
            if self.body_bytes <= SMALL_BYTES:
                self._parts.append(data)
        elif not self.first_token_s:
            self._look_for_token(data, now_s)
        else:
            ordinary = self.mirrored.dialect.ordinary
            self.lease.tokens(data.count(ordinary) if ordinary else 1)
            self._tail = (self._tail + data)[-TAIL_BYTES:]

    def _look_for_token(self, data: bytes, now_s: float) -> None:
        """Read whole events until one has a token. What is held is an unfinished one."""
        held = self._tail + data
        end = after_last(held)
        read = self.mirrored.dialect.read
        begun = any(read(each).sign is Sign.TOKEN for each in split(held[:end]))
        if begun or len(held) - end > BEGINNING_BYTES:
            self.first_token_s = now_s
            self.lease.first_token(now_s)
            self._tail = held[-TAIL_BYTES:]
        else:
            self._tail = held[end:]

    def end(self, result: str = "") -> None:
        """Its answer is whole, or (`result`) something else ends it. Frees the engine then."""
        if self.result:
            return
        self.result = result or self._judged()
        self._parts, self._tail = [], b""
        if self._dialing is not None:
            self._dialing.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and connection.sink is self:
            connection.abort()
        self.lease.end(self._now())
        ended, self._ended = self._ended, _nothing
        ended(self)

    def lost(self, error: BackendError) -> None:
        self.end("failed")

    def _judged(self) -> str:
        """How a whole answer ended, and what it says of its tokens."""
        dialect = self.mirrored.dialect
        if not self._streams:
            small = 0 < self.body_bytes <= SMALL_BYTES
            whole = whole_of(b"".join(self._parts)) if small else None
            if whole is not None:
                self.usage = dialect.usage(whole)
            return "ok" if self.body_bytes else "failed"
        tail = self._tail
        if len(tail) == TAIL_BYTES:  # it may begin within an event
            tail = tail[after_first(tail) :]
        signs = []
        for event in split(tail):
            read = dialect.read(event)
            self.usage = read.usage or self.usage
            signs.append(read.sign)
        broken = Sign.ERROR in signs or Sign.ABORT in signs
        # An event that is larger than the tail leaves no sign.
        unfinished = dialect.has_end and bool(signs) and Sign.DONE not in signs
        return "failed" if broken or unfinished or not self.first_token_s else "ok"


def _nothing(copy: Copy) -> None:
    """It is told once."""
