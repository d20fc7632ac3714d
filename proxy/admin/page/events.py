"""`GET /api/v1/events`: what the page shows, once a second, for as long as somebody looks.

All viewers get the same bytes, which are made once: parts of what the other paths tell, in slices,
between which others run. Who reads too slowly misses some, and who takes nothing for STALL_S is
dropped. At most one piece and the buffers of its connection wait for a viewer.
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import time
from typing import Any, Final, cast

import orjson
from aiohttp import web

from penstock import proxy
from penstock.proxy.admin.answers import PIECE_BYTES, error_answer, json_list
from penstock.proxy.admin.fleet_listing import FleetListing
from penstock.proxy.admin.listings import (
    busiest_tenants,
    canary_listing,
    queue_listing,
    slo_listing,
)
from penstock.proxy.admin.page.history import History
from penstock.proxy.admin.request_listing import brief
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.data.account import count_all
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.wire.client_address import party_of

REQUESTS_MAX: Final = 20
# Of what waits in each pool so many are told: what one waits for takes a choice.
HEADS_MAX: Final = 4
TENANTS_MAX: Final = 10
BUSIEST_MAX: Final = 20
_BACKEND: Final = (
    *("name", "pool", "state", "reason", "admin_state", "removed", "can_serve", "share"),
    *("requests_in_flight", "queued_prefill_tokens", "active_decode_tokens", "streams"),
    *("requests_total", "prefill_tokens_per_s", "token_ms", "slower", "slower_in", "newcomer"),
    *("verdict", "lately"),
)
_CANARY: Final = ("route", "pool", "stage", "percent", "why")
_ENGINE: Final = ("running", "waiting", "kv_usage", "prefix_hit_rate")


class Snapshot:
    """Makes snapshots. `proxy_told`: what `/api/v1/proxy` tells."""

    def __init__(
        self,
        plane: DataPlane,
        fleet: FleetListing,
        verdicts: Verdicts,
        proxy_told: Callable[[], dict[str, object]],
        history: History,
    ) -> None:
        self._plane = plane
        self._fleet = fleet
        self._verdicts = verdicts
        self._proxy_told = proxy_told
        self._history = history

    async def __call__(self) -> bytes:
        """The snapshot of now, in one line."""
        count_all(self._plane)
        queue = await queue_listing(self._plane, HEADS_MAX)
        queue["tenants"] = self._verdicts.waiting_by_tenant(TENANTS_MAX)
        backends = await json_list(_row(each) for each in self._fleet.entries())
        told = {
            "at": round(time(), 3),
            "version": proxy.__version__,
            "proxy": self._proxy_told(),
            "verdicts": self._verdicts.listing(),
            "slos": slo_listing(self._plane.slos.evaluated(), self._plane.now()),
            "canaries": self._canaries(),
            "queue": queue,
            "rates": self._history.rates,
            "tenants": busiest_tenants(self._plane, self._plane.now(), BUSIEST_MAX),
            "requests": self._requests(),
        }
        return b'%b,"backends":%b}' % (orjson.dumps(told)[:-1], backends.rstrip())

    def _canaries(self) -> list[dict[str, object]]:
        trials = self._plane.canaries.trials.values()
        listed = canary_listing(trials, self._plane.now())
        return [{name: each[name] for name in _CANARY} for each in listed]

    def _requests(self) -> dict[str, list[dict[str, object]]]:
        recent, now_s = self._plane.recent, self._plane.now()
        return {
            name: [brief(each, now_s) for each in found[:REQUESTS_MAX]]
            for name, found in (("slow", recent.slow()), ("failed", recent.failed()))
        }


def _row(told: dict[str, Any]) -> dict[str, object]:
    """What a row needs of a backend. What its engine has not told lately is left out."""
    row = {name: told[name] for name in _BACKEND}
    engine = told["engine"]
    row["engine"] = None
    if engine is not None and engine["fresh"]:
        row["engine"] = {name: engine[name] for name in _ENGINE}
        if not engine["kv_told"]:
            row["engine"]["kv_usage"] = None
    return row


# Half of the admin port's connections, so that commands and probes always have the others.
VIEWERS_MAX: Final = 32
OWN_MAX: Final = 16


@dataclass(slots=True, eq=False)
class Viewer:
    """One viewer. `leave` is called when it must give way."""

    owner: str
    leave: Callable[[], None]


class Viewers:
    """All viewers, the first one first."""

    def __init__(self) -> None:
        self._all: dict[Viewer, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, owner: str, leave: Callable[[], None]) -> Viewer | None:
        """A place for one more from this address. None if there is none."""
        held = Counter([each.owner for each in self._all])
        mine = held[owner]
        if mine >= OWN_MAX:
            return None
        if len(self._all) >= VIEWERS_MAX:
            most = max(held.values())
            if most <= mine + 1:
                return None
            loser = next(each for each in self._all if held[each.owner] == most)
            del self._all[loser]
            loser.leave()
        viewer = Viewer(owner, leave)
        self._all[viewer] = None
        return viewer

    def exit(self, viewer: Viewer) -> None:
        """It looks no more. It may have given way before."""
        self._all.pop(viewer, None)


logger = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
# Between the end of one and the next, for large fleets on slow machines.
PAUSE_S: Final = 0.25
STALL_S: Final = 10.0
# The kernel's buffer of a viewer: what it holds, nobody has read.
SEND_BUFFER_BYTES: Final = 65_536


class Events:
    """One stream for each viewer. `snapshot`: makes the JSON of one event, without line ends."""

    def __init__(
        self,
        snapshot: Callable[[], Awaitable[bytes]],
        still: Callable[[web.Request], bool],
        stays: Callable[[web.Request], None],
    ) -> None:
        """`still`: whether a viewer may go on. `stays`: its connection has no time limit."""
        self._snapshot = snapshot
        self._still = still
        self._stays = stays
        self._viewers = Viewers()
        self._latest = b""
        self._turn = asyncio.Event()
        self._making: asyncio.Task[None] | None = None
        self._closed = False
        self.made = 0

    @property
    def viewed(self) -> bool:
        """Whether somebody looks."""
        return bool(self._viewers)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The stream of one viewer. It returns when that leaves."""
        gives_way = asyncio.Event()
        viewer = self._viewers.enter(party_of(request.remote or ""), gives_way.set)
        if viewer is None or self._closed:
            answer = error_answer(503, "too_many_viewers", "Too many look at the page already.")
            answer.headers["Retry-After"] = "5"
            return answer
        try:
            if self._making is None:
                self._making = asyncio.create_task(self._make())
            stream = web.StreamResponse(
                headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            )
            await stream.prepare(request)
            self._stays(request)
            _bound(request)
            with contextlib.suppress(ConnectionError):
                await self._tell(request, stream, gives_way)
            return stream
        finally:
            self._viewers.exit(viewer)

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._turn.set()
        if self._making is not None:
            self._making.cancel()

    async def _tell(
        self, request: web.Request, stream: web.StreamResponse, gives_way: asyncio.Event
    ) -> None:
        event = b""
        while not (self._closed or gives_way.is_set() or _gone(request)) and self._still(request):
            if self._latest is event:
                await self._turn.wait()
                continue
            event = self._latest
            try:
                async with asyncio.timeout(STALL_S):
                    for at in range(0, len(event), PIECE_BYTES):
                        await stream.write(event[at : at + PIECE_BYTES])
            except TimeoutError:
                logger.info(
                    "a viewer of the page took nothing, and was dropped from=%s", request.remote
                )
                if request.transport is not None:
                    request.transport.abort()
                return

    async def _make(self) -> None:
        """Make an event each second while somebody looks."""
        clock = asyncio.get_running_loop().time
        try:
            while self._viewers and not self._closed:
                due_s = clock() + PERIOD_S
                try:
                    self._latest = b"data: %b\n\n" % await self._snapshot()
                    self.made += 1
                except Exception:
                    logger.exception("the page has no news")
                self._turn.set()
                self._turn = asyncio.Event()
                await asyncio.sleep(max(PAUSE_S, due_s - clock()))
        finally:
            self._making = None
            self._latest = b""  # too old for the next one who looks


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _bound(request: web.Request) -> None:
    """Bound what waits for a viewer, here and in the kernel."""
    transport = cast("asyncio.WriteTransport | None", request.transport)
    if transport is None:
        return
    transport.set_write_buffer_limits(PIECE_BYTES)
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
