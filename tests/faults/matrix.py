"""The fault matrix: each way to fail, under live streams, and what became of every one.

A row starts a proxy before four servers, and one before the faulty server alone
for the SDKs; strikes before the streams begin or when they live; and counts.
"""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Final

import aiohttp

from tests.e2e.forked import SimProcess
from tests.e2e.process import COUNTS, Penstock, Serve
from tests.faults import sdks
from tests.faults.streams import CHAT, COMPLETIONS, MESSAGES, PATHS, Stream, Verdict

TIMEOUTS: Final = {
    "connect_s": 0.5,
    "first_byte_s": 4,
    "first_byte_s_per_1k_tokens": 0,
    "idle_s": 3,
    "hold_s": 1,
}
HEALTH: Final = {"interval_s": 0.5, "deep": {"interval_s": 5}}
# Three engines that never answer, one that falls silent after it began, and a loaded machine.
LIMIT_S: Final = 45.0
ZERO_WITHIN_S: Final = 2.0
# Of a stream's events: from its very beginning to near its end, in every dialect's preamble.
OFFSETS: Final = (0, 1, 6, 40, 150, 600, 1_300, 2_500, 3_700, 4_900)

TOLD_APART: Final = (CHAT, COMPLETIONS, MESSAGES)

# 10 tokens a second on every stream, however many there are.
SIM: Final = ("--profile", "steady-50", "--speedup", "0.2")


class Server(SimProcess):
    """One that makes faults, and tells what came to it."""

    def __init__(self) -> None:
        super().__init__(*SIM)

    async def fault(self, kind: str, **options: Any) -> None:
        await self._control({"clear": True, "set": [{"kind": kind, **options}]})

    async def also(self, kind: str, **options: Any) -> None:
        """One more fault beside those that are on."""
        await self._control({"set": [{"kind": kind, **options}]})

    async def mixed(self) -> int:
        """Of the last requests that came here, those whose bytes are not what was sent."""
        limit = aiohttp.ClientTimeout(5)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.get(f"{self.url}/sim/state") as got,
            ):
                seen = (await got.json())["requests"]
        except (aiohttp.ClientError, TimeoutError):
            return 0  # it was killed, or its fault is to take no connections
        wrong = 0
        for request in seen:
            check = dict(request["headers"]).get("x-check")
            wrong += check is not None and check != request["body_sha256"]
        return wrong

    async def _control(self, body: dict[str, Any]) -> None:
        async with (
            asyncio.timeout(20),
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/sim/faults", json=body) as answer,
        ):
            assert answer.status == 200, await answer.text()


Strike = Callable[[list[Server]], Awaitable[None]]


async def _nothing(servers: list[Server]) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """`before` strikes before the streams begin, `live` while they run.

    `hidden`: no client may notice, since no token was sent before it. `paths`: the APIs
    in which a server tells it apart from an answer.
    """

    name: str
    before: Strike = _nothing
    live: Strike = _nothing
    hidden: bool = False
    paths: tuple[str, ...] = PATHS

    @property
    def during_all(self) -> bool:
        """Whether it is there from the first stream to the last, however slow the machine."""
        return self.live is _nothing


@dataclass
class Row:
    """What became of the streams under one fault."""

    fault: str
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    refused: int = 0  # of those told, by a status
    sdk: Counter[Verdict] = field(default_factory=Counter)
    mixed_upstream: int = 0
    zero_after_s: float = 0.0

    def problems(self, *, hidden: bool) -> list[str]:
        """What must not be."""
        never = (Verdict.SILENT, Verdict.HUNG, Verdict.MIXED)
        found = [f"{self.verdicts[each]} {each}" for each in never if self.verdicts[each]]
        found += [f"SDK: {self.sdk[each]} {each}" for each in never if self.sdk[each]]
        if self.mixed_upstream:
            found.append(f"{self.mixed_upstream} bodies changed on their way up")
        if self.zero_after_s > ZERO_WITHIN_S:
            found.append(f"counters not zero within {ZERO_WITHIN_S} s")
        if hidden and self.verdicts[Verdict.TOLD]:
            found.append(f"{self.verdicts[Verdict.TOLD]} clients noticed")
        return found


def on_first(kind: str, **options: Any) -> Strike:
    """Switch a fault on at the first server."""

    async def strike(servers: list[Server]) -> None:
        await servers[0].fault(kind, **options)

    return strike


async def _kill(servers: list[Server], *, count: int = 1) -> None:
    await asyncio.gather(*[server.kill() for server in servers[:count]])


async def _stop_and_go(servers: list[Server]) -> None:
    servers[0].signal(signal.SIGSTOP)
    await asyncio.sleep(6)
    servers[0].signal(signal.SIGCONT)


async def _load(servers: list[Server]) -> None:
    """Alive, and 503 to everything, as while a model is loading behind a front of its own."""
    await servers[0].fault("busy")
    await servers[0].also("health_503")


async def _flap(servers: list[Server]) -> None:
    for _ in range(2):
        await servers[0].kill()
        await asyncio.sleep(1)
        await servers[0].start()
        await asyncio.sleep(1)


async def _all_down_and_back(servers: list[Server]) -> None:
    await _kill(servers, count=len(servers))
    await asyncio.sleep(2)
    await asyncio.gather(*[server.start() for server in servers])


FAULTS: Final = (
    Fault("none", hidden=True),
    Fault("SIGKILL", live=_kill),
    Fault("SIGKILL before its first token", on_first("hang_after_headers"), _kill, hidden=True),
    Fault("SIGSTOP 6 s, SIGCONT", live=_stop_and_go),
    Fault("refused", on_first("refuse"), hidden=True),
    Fault("accept, no answer", on_first("hang_accept"), hidden=True),
    Fault("no head, cut", on_first("cut_before_headers"), hidden=True),
    Fault("no head, RST", on_first("cut_before_headers", rst=True), hidden=True),
    Fault("head, then cut", on_first("cut_after_headers"), hidden=True),
    Fault("head, then RST", on_first("cut_after_headers", rst=True), hidden=True),
    *(Fault(f"cut at byte {at}", on_first("cut_at_byte", at_byte=at)) for at in OFFSETS),
    *(Fault(f"RST at byte {at}", on_first("cut_at_byte", at_byte=at, rst=True)) for at in OFFSETS),
    Fault("garbage at once", on_first("garbage", tokens=0), hidden=True),
    Fault("garbage after 5 tokens", on_first("garbage", tokens=5)),
    Fault("200, then an error event", on_first("error_event", status=500), hidden=True),
    Fault("error event after 5 tokens", on_first("error_event", status=500, tokens=5)),
    # Of a response that it gives up vLLM says "completed", as of one that ended by itself.
    Fault("abort after 5 tokens", on_first("abort_mid_stream", tokens=5), paths=TOLD_APART),
    Fault("silence after 5 tokens", on_first("hang_mid_stream", tokens=5)),
    Fault("nothing but the end", on_first("done_only"), hidden=True),
    Fault("503, loading", _load),
    Fault("zombie", on_first("hang_before_headers"), hidden=True),
    Fault("fast 500", on_first("internal_error"), hidden=True),
    Fault("draining", on_first("draining"), hidden=True),
    Fault("flapping 1 s", live=_flap),
    Fault("all down, back", live=_all_down_and_back),
)


async def run(fault: Fault, servers: list[Server], serve: Serve, count: int) -> Row:
    """One row of the table."""
    row = Row(fault.name)
    penstock, lone = [
        await serve([each.url for each in before], timeouts=TIMEOUTS, health=HEALTH)
        for before in (servers, servers[:1])
    ]
    await fault.before(servers)
    streams = [
        Stream(f"{fault.name} {number}", path, http11=number % 5 > 0)
        for number, path in zip(range(count), cycle(fault.paths), strict=False)
    ]
    running = asyncio.gather(*[stream.run(penstock.port, LIMIT_S) for stream in streams])
    asking = asyncio.create_task(sdks.ask(lone.url, fault.name, fault.paths, LIMIT_S))
    if fault.live is not _nothing:
        await _until_live(penstock, count)
        await fault.live(servers)
    await running
    row.sdk.update(await asking)
    row.zero_after_s = await _until_zero(penstock)
    row.verdicts.update(stream.verdict for stream in streams)
    row.refused = sum(stream.status >= 400 for stream in streams)
    for server in servers:
        row.mixed_upstream += await server.mixed()
    return row


async def _until_live(penstock: Penstock, count: int) -> None:
    """Until nearly all streams run, or all of them that will."""
    with contextlib.suppress(AssertionError):
        await penstock.until(
            lambda listing: sum(each["streams"] for each in listing) >= 0.9 * count, 1.5
        )


async def _until_zero(penstock: Penstock) -> float:
    """Seconds until nothing is counted anywhere; ZERO_WITHIN_S and more when it never is."""
    began_s = time.monotonic()
    with contextlib.suppress(AssertionError):
        await penstock.until(
            lambda listing: not any(each[name] for each in listing for name in COUNTS),
            2 * ZERO_WITHIN_S,
        )
    return time.monotonic() - began_s


@contextlib.asynccontextmanager
async def fleet(size: int = 4) -> AsyncIterator[list[Server]]:
    servers = [Server() for _ in range(size)]
    try:
        await asyncio.gather(*[server.start() for server in servers])
        yield servers
    finally:
        await asyncio.gather(*[server.kill() for server in servers])
