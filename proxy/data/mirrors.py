"""The copies of requests that run for the mirrors of routes: how many may, and when they end.

A copy is sent where nobody waits. It is made only while there is room, and all end when
the process is overloaded, takes another configuration or drains.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.proxy.data.mirror_comparison import compare
from penstock.proxy.data.mirror_copy import Copy
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.record import Record

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
# How often copies are looked at that take too long, and how many wait for the end of the original.
LOOK_S: Final = 1.0
COMPARED_MAX: Final = 256


class Seat:
    """The room that one copy takes, from the first bytes of its original's answer to its end."""

    __slots__ = ("body_bytes", "client", "route")

    def __init__(self, route: str, client: str, body_bytes: int) -> None:
        self.route = route
        self.client = client
        self.body_bytes = body_bytes


class _Original:
    """What a copy is compared with. `limit_tokens`: of its answer, 0 for none."""

    __slots__ = ("limit_tokens", "record", "route")

    def __init__(self, route: str, record: Record, limit_tokens: int) -> None:
        self.route = route
        self.record = record
        self.limit_tokens = limit_tokens


class Mirrors:
    """All copies of a process."""

    __slots__ = (
        "_by_client",
        "_by_route",
        "_client_bytes",
        "_loop",
        "_metrics",
        "_now",
        "_resting",
        "_running",
        "_seats",
        "_timer",
        "_to_compare",
        "bodies_bytes",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, metrics: Metrics, now: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._now = now
        self._running: dict[Copy, tuple[Seat, _Original]] = {}
        self._to_compare: OrderedDict[Copy, _Original] = OrderedDict()
        self._seats = 0
        self._by_route: Counter[str] = Counter()
        self._by_client: Counter[str] = Counter()
        self._client_bytes: Counter[str] = Counter()
        self._resting: OrderedDict[str, float] = OrderedDict()  # by client, until when
        self._timer: asyncio.TimerHandle | None = None
        self.bodies_bytes = 0

    def __len__(self) -> int:
        return self._seats

    def seat(self, route: str, client: str, body_bytes: int) -> Seat | None:
        """Room for a copy of a request with such a body. None: there is none."""
        if self._now() < self._resting.get(client, 0.0):
            return None
        full = self._seats >= ALL_MAX or self._by_route[route] >= ROUTE_MAX
        if full or self._by_client[client] >= CLIENT_MAX:
            return None
        own_bytes = self._client_bytes[client] + body_bytes
        if self.bodies_bytes + body_bytes > BODIES_BYTES_MAX or own_bytes > CLIENT_BYTES_MAX:
            return None
        self._seats += 1
        self._by_route[route] += 1
        self._by_client[client] += 1
        self._client_bytes[client] = own_bytes
        self.bodies_bytes += body_bytes
        return Seat(route, client, body_bytes)

    def leave(self, seat: Seat, result: str) -> None:
        """Give a seat back. `result`: what became of the copy, for the metric."""
        self._free_body(seat)
        self._seats -= 1
        for counts, name in ((self._by_route, seat.route), (self._by_client, seat.client)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
        self.count(seat.route, result)

    def count(self, route: str, result: str) -> None:
        self._metrics.mirror_requests.add(route, result)

    def run(self, copy: Copy, seat: Seat, record: Record, limit_tokens: int) -> None:
        """Begin a copy. `record`: of its original. `limit_tokens`: of its answer, 0 for none."""
        self._running[copy] = seat, _Original(seat.route, record, limit_tokens)
        self._watch()
        copy.begin()

    def ended(self, copy: Copy) -> None:
        """A copy is over."""
        seat, original = self._running.pop(copy)
        self.leave(seat, copy.result)
        if copy.result == "failed":
            self._resting[seat.client] = self._now() + REST_S
            self._resting.move_to_end(seat.client)
            if len(self._resting) > RESTING_MAX:
                self._resting.popitem(last=False)
        if copy.result == "ok":
            self._to_compare[copy] = original
            if len(self._to_compare) > COMPARED_MAX:
                self._to_compare.popitem(last=False)
            self._compare()

    def end_all(self) -> None:
        """End all copies now: something else needs what they take."""
        for copy in list(self._running):
            copy.end("ended")
        self._to_compare.clear()

    def _watch(self) -> None:
        if self._timer is None and (self._running or self._to_compare):
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """End what takes too long, and free the bodies that were sent."""
        self._timer, now_s = None, self._now()
        for copy, (seat, _) in list(self._running.items()):
            if now_s >= copy.due_s:
                copy.end("late")
            elif not copy.holds_body:
                copy.forget_body()
                self._free_body(seat)
        self._compare()
        self._watch()

    def _free_body(self, seat: Seat) -> None:
        self.bodies_bytes -= seat.body_bytes
        self._client_bytes[seat.client] -= seat.body_bytes
        if not self._client_bytes[seat.client]:
            del self._client_bytes[seat.client]
        seat.body_bytes = 0

    def _compare(self) -> None:
        """Compare the copies whose originals have ended, too."""
        for copy, original in list(self._to_compare.items()):
            if original.record.ended_s:
                del self._to_compare[copy]
                compare(self._metrics, original.route, original.record, original.limit_tokens, copy)
