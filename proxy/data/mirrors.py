"""The copies of requests that run for the mirrors of routes: sent, read, compared, thrown away.

A copy never comes near a client. It has a lease, so its load is counted at its backend. Its times
and counts teach nothing, and its failures are not counted against the backend: probes find out.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.balancing.fair_table import put_last
from penstock.balancing.lease import Lease
from penstock.proxy.dialects import Dialect
from penstock.proxy.dialects.dialect import SMALL_BYTES, Sign, Usage, whole_of
from penstock.proxy.errors.backend import BackendError
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.record import Record
from penstock.proxy.wire.connection import BackendConnection
from penstock.proxy.wire.edit import Splices, spliced_bytes
from penstock.proxy.wire.event_ends import after_first, after_last, split
from penstock.proxy.wire.forwarded_head import forwarded_request_head
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import RequestHead, ResponseHead
from penstock.proxy.wire.pool import ConnectionPool

# How many copies run at once: of all routes, of one, and of one client.
ALL_MAX: Final = 128
ROUTE_MAX: Final = 64
CLIENT_MAX: Final = 16
# The bytes of bodies that copies hold: of all, and of one client.
BODIES_BYTES_MAX: Final = 33_554_432
CLIENT_BYTES_MAX: Final = BODIES_BYTES_MAX // 4
# After a copy of its request has failed, a client is not copied for so long. A prompt that kills
# the mirror's engine would kill it again.
REST_S: Final = 10.0
RESTING_MAX: Final = 1_024
# How often copies are looked at that take too long, or whose originals have ended.
LOOK_S: Final = 1.0
# What is held of a stream: an unfinished event before the first token, and the end, for the usage.
# (A responses stream repeats its output in its last event. If that is larger, it tells no usage.)
BEGINNING_BYTES: Final = 65_536
TAIL_BYTES: Final = 8_192
# The pieces of a large body take the turns of this sender, whoever's copy it is. No client's name.
SENDER: Final = "\0mirror"


class Seat:
    """The room that one copy takes, from the first bytes of its original's answer to its end."""

    def __init__(self, route: str, client: str, body_bytes: int) -> None:
        self.route = route
        self.client = client
        self.body_bytes = body_bytes


class Mirrored(NamedTuple):
    """What is sent, and with what it is compared."""

    seat: Seat
    record: Record  # of the original
    limit_tokens: int  # of its answer, 0 for none
    head: RequestHead
    body: bytes  # the original's own bytes, and no second copy of them
    replaced: Splices
    added: Headers
    dialect: Dialect
    peer: bytes
    key: tuple[bool, bytes | None]  # whether the client's is sent, and the pool's own
    first_s: float  # the longest time until the first token
    idle_s: float  # and without a byte after that
    total_s: float


class Copy:
    """A copy under way, and the sink of its answer. `result` is empty until it has ended."""

    def __init__(
        self,
        mirrored: Mirrored,
        lease: Lease,
        connections: ConnectionPool,
        now: Callable[[], float],
        ended: Callable[["Copy"], None],
    ) -> None:
        """`ended` is called once."""
        self.mirrored = mirrored
        self.lease = lease
        lease.held_up = True  # its time teaches nothing
        self._connections = connections
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
    def due_s(self) -> float:
        """When it has taken too long, if nothing more comes."""
        mirrored = self.mirrored
        over_s = self.began_s + mirrored.total_s
        if self.first_token_s:
            return min(over_s, self.last_byte_s + mirrored.idle_s)
        return min(over_s, self.began_s + mirrored.first_s)

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
        self.mirrored = self.mirrored._replace(body=b"")  # it may wait for its original's end
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


class Mirrors:
    """All copies of a process. They run only while there is room, and all end when the process is
    overloaded, takes another configuration or drains. `bodies_bytes`: of their requests."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, metrics: Metrics, now: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._now = now
        self._seats: set[Seat] = set()
        self._running: set[Copy] = set()
        self._ended: set[Copy] = set()  # whole ones, until their originals have ended, too
        self._resting: dict[str, float] = {}  # by client, until when
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def bodies_bytes(self) -> int:
        return sum([each.body_bytes for each in self._seats])

    def seat(self, route: str, client: str, body_bytes: int) -> Seat | None:
        """Room for a copy of a request with such a body. None: there is none."""
        own = [each for each in self._seats if each.client == client]
        of_route = [each for each in self._seats if each.route == route]
        full = len(self._seats) >= ALL_MAX or len(of_route) >= ROUTE_MAX or len(own) >= CLIENT_MAX
        if full or self._now() < self._resting.get(client, 0.0):
            return None
        own_bytes = sum([each.body_bytes for each in own]) + body_bytes
        if own_bytes > CLIENT_BYTES_MAX or self.bodies_bytes + body_bytes > BODIES_BYTES_MAX:
            return None
        seat = Seat(route, client, body_bytes)
        self._seats.add(seat)
        return seat

    def leave(self, seat: Seat, result: str) -> None:
        """Give a seat back. `result`: what became of the copy, for the metric."""
        self._seats.discard(seat)
        self.count(seat.route, result)

    def count(self, route: str, result: str) -> None:
        self._metrics.mirror_requests.add(route, result)

    def run(self, copy: Copy) -> None:
        self._running.add(copy)
        self._watch()
        copy.begin()

    def ended(self, copy: Copy) -> None:
        self._running.discard(copy)
        seat = copy.mirrored.seat
        self.leave(seat, copy.result)
        if copy.result == "failed":
            put_last(self._resting, seat.client, self._now() + REST_S, RESTING_MAX)
        if copy.result == "ok":
            self._ended.add(copy)
            self._compare()

    def end_all(self) -> None:
        """End all copies now: something else needs what they take."""
        for copy in list(self._running):
            copy.end("ended")
        self._ended.clear()

    def _watch(self) -> None:
        if self._timer is None and (self._running or self._ended):
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """End what takes too long, and compare what has ended."""
        self._timer, now_s = None, self._now()
        for copy in [each for each in self._running if now_s >= each.due_s]:
            copy.end("late")
        self._compare()
        self._watch()

    def _compare(self) -> None:
        """Compare the copies whose originals have ended, too."""
        for copy in [each for each in self._ended if each.mirrored.record.ended_s]:
            self._ended.discard(copy)
            _compare(self._metrics, copy)


def _compare(metrics: Metrics, copy: Copy) -> None:
    """Count how a whole copy differs. Nothing of an original that did not end well.

    Texts are not compared: engines that sample answer differently each time.
    """
    record, route = copy.mirrored.record, copy.mirrored.seat.route
    if not record.whole or record.status != 200:
        return
    own_s = record.first_token_s - record.sent_s
    if record.streamed and record.first_token_s and copy.first_token_s and own_s > 0.0:
        ratios = metrics.mirrored(metrics.mirror_first_token, route)
        ratios.observe((copy.first_token_s - copy.sent_s) / own_s)
    if record.usage is None or copy.usage is None:
        return
    tokens, copied_tokens = record.usage.completion_tokens, copy.usage.completion_tokens
    if tokens:
        metrics.mirrored(metrics.mirror_tokens, route).observe(copied_tokens / tokens)
    limit_tokens = copy.mirrored.limit_tokens
    if limit_tokens:
        cut, copy_cut = tokens >= limit_tokens, copied_tokens >= limit_tokens
        same = "same" if cut == copy_cut else "original_cut" if cut else "copy_cut"
        metrics.mirror_ends.add(route, same)
