"""Requests that run or ran lately, as JSON: what became of them, and where their time went.

No text of a client is shown but its request id. Nobody can choose what others are shown under an
id: of each tenant or client that used it, the latest request is told, or how to come to it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from heapq import merge
from math import inf
from time import time
from typing import Final

from penstock.proxy.data.account import count_all, kept_of
from penstock.proxy.data.ending import EndingConnection
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.telemetry.log_lines import printable
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.waterfall import waterfall

# A connection takes 1 to 3 us. After so many others run.
AT_ONCE: Final = 128


async def under_way(
    plane: DataPlane, fits: Callable[[Request], bool], *, latest_first: bool = False
) -> AsyncIterator[Kept]:
    """Those that run, whose body is here and that `fits` accepts, the oldest first.

    New ones may begin meanwhile. What has ended meanwhile is left out, but the caller may await,
    too: who keeps them for long looks at `ended_s` of their records.
    """
    clients = list(plane.clients)
    runs: list[list[Request]] = []
    for at in range(0, len(clients), AT_ONCE):
        requests = [
            each.request
            for each in clients[at : at + AT_ONCE]
            if isinstance(each, EndingConnection)
        ]
        found = [each for each in requests if each is not None and fits(each)]
        if found:
            runs.append(sorted(found, key=_began_s, reverse=latest_first))
        await asyncio.sleep(0)
    backends = {backend.name: backend for backend in plane.fleet.backends}
    ordered = merge(*runs, key=_began_s, reverse=latest_first)
    for number, request in enumerate(ordered, 1):
        if not request.record.ended_s:
            backend, model = backends.get(request.record.backend), request.ask.model
            known = backend is not None and model is not None and backend.lists(model)
            yield kept_of(request, model if known else None)
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)


def _began_s(request: Request) -> float:
    return request.record.began_s


# A request that runs is listed after this time, and of each tenant or client at most so many.
RUNNING_S: Final = 5.0
RUNNING_MAX: Final = 20
LIMIT: Final = 50
LIMIT_MAX: Final = 500
_FLAGS: Final = ("slow", "failed")
_NAMES: Final = ("tenant", "backend")
_NARROWING: Final = ("tenant", "before", "limit")
Told = Iterator[dict[str, object]]


class BadQuery(Exception):
    """The query cannot be understood. The text is for the user."""


async def request_listing(plane: DataPlane, query: Mapping[str, str]) -> Told:
    """Those that a query asks for, the latest first. With `slow` the slowest. Raises BadQuery."""
    for name in query:
        if name not in (*_FLAGS, *_NAMES, "limit"):
            raise BadQuery("The query may have: slow, failed, tenant, backend, limit.")
    slow, failed = [_flag(query.get(name)) for name in _FLAGS]
    tenant, backend = [query.get(name) for name in _NAMES]
    limit, recent = _limit(query.get("limit")), plane.recent
    running = [] if failed else await _running(plane, tenant, backend, limit)
    count_all(plane)  # some have ended meanwhile
    if slow:
        found = [each for each in recent.slow() if not failed or each.failed]
    else:
        found = recent.failed() if failed else recent.all()
    found = [each for each in found if _fits(each, tenant, backend)]
    return _all_told(_together(running, found, limit), plane)


def _fits(kept: Kept, tenant: str | None, backend: str | None) -> bool:
    """Whether it is of this tenant, and was tried at this backend. None: any."""
    if tenant is not None and kept.tenant != tenant:
        return False
    return backend is None or backend in [each.backend for each in kept.record.tries]


def _together(running: Iterable[Kept], ended: Sequence[Kept], limit: int) -> list[Kept]:
    """However many run, those that have ended have half of the places."""
    running = [each for each in running if not each.record.ended_s]  # else it stands in both
    return [*running[: max(limit // 2, limit - len(ended))], *ended][:limit]


async def requests_with_id(plane: DataPlane, request_id: str, query: Mapping[str, str]) -> Told:
    """Of each tenant or client that used this id its latest request, the latest first.

    `same_id` tells how many such requests there are. If they are more than `limit`, `tenant` and
    `before` find the others. Raises BadQuery.
    """
    for name in query:
        if name not in _NARROWING:
            raise BadQuery("The query may have: tenant, before, limit.")
    limit, tenant = _limit(query.get("limit")), query.get("tenant")
    until_s = _until_s(query.get("before"), plane.now())
    wanted = request_id.encode("utf-8", "replace")
    running: dict[str, Kept] = {}
    async for kept in under_way(
        plane, lambda each: each.answer.request_id == wanted, latest_first=True
    ):
        if _fits(kept, tenant, None) and kept.record.began_s <= until_s:
            running.setdefault(kept.owner, kept)
    ended: dict[str, Kept] = {}
    count_all(plane)  # some have ended meanwhile
    for kept in plane.recent.all():
        mine = kept.request_id == wanted and kept.owner not in running
        if mine and _fits(kept, tenant, None) and kept.record.began_s <= until_s:
            ended.setdefault(kept.owner, kept)
    count = len(running) + len(ended)
    shown = _together(running.values(), list(ended.values()), limit)
    return (told | {"same_id": count} for told in _all_told(shown, plane))


async def _running(
    plane: DataPlane, tenant: str | None, backend: str | None, limit: int
) -> list[Kept]:
    """Those that have run for long, the oldest first."""
    since_s = plane.now() - RUNNING_S
    counts: dict[str, int] = {}
    found: list[Kept] = []
    async for kept in under_way(plane, lambda each: each.record.began_s <= since_s):
        if not _fits(kept, tenant, backend):
            continue
        counts[kept.owner] = counts.get(kept.owner, 0) + 1
        if counts[kept.owner] <= RUNNING_MAX:
            found.append(kept)
        if len(found) >= limit:
            break
    return found


def _all_told(found: Iterable[Kept], plane: DataPlane) -> Told:
    """Describes each one when it is its turn."""
    return (_told(kept, plane.now()) for kept in found)


def brief(kept: Kept, now_s: float) -> dict[str, object]:
    """What one line tells of a request."""
    record = kept.record
    usage, runs = record.usage, not record.ended_s
    began = datetime.fromtimestamp(time() - now_s + record.began_s, UTC)
    return {
        "id": kept.request_id.decode("ascii"),
        "trace_id": record.trace_id or None,
        "state": "running" if runs else "ended",
        "began": began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "ago_s": round(now_s - record.began_s, 3),
        "tenant": kept.tenant or None,
        "class": record.service_class or None,
        "model": printable(kept.model) if kept.model is not None else None,
        "route": record.route or None,
        "fell_back": record.fell_back or None,
        "pool": record.pool or None,
        "backend": record.backend or None,
        "attempts": record.attempts,
        "stream": kept.stream,
        "status": None if runs else record.status,
        "error": record.error,
        "whole": record.whole,
        "failed": not runs and kept.failed,
        "duration_ms": record.ms(record.ended_s or now_s),
        "ttft_ms": record.ms(record.first_token_s),
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
    }


def _told(kept: Kept, now_s: float) -> dict[str, object]:
    record = kept.record
    return brief(kept, now_s) | {
        "reason": record.reason or None,
        "overhead_ms": _ms(record.overhead_s) if record.sent_s else None,
        "degraded": record.degraded or None,
        "client_behind_ms": _ms(record.behind_s),
        "failures": _failures(record),
        "parts": [
            {
                "part": part.name,
                "ms": _ms(part.seconds),
                "backend": part.backend or None,
                "why": part.why or None,
            }
            for part in waterfall(record, now_s)
        ],
    }


def _failures(record: Record) -> list[dict[str, object]]:
    """The attempts that failed: where, why it was chosen, and why it failed."""
    return [
        {"backend": each.backend, "reason": each.reason, "failure": each.failure}
        for each in record.tries
        if each.failure
    ]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _flag(text: str | None) -> bool:
    if text not in (None, "", "1", "true", "0", "false"):
        raise BadQuery("slow and failed are true or false.")
    return text in ("", "1", "true")


def _limit(text: str | None) -> int:
    if text is None:
        return LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= LIMIT_MAX):
        raise BadQuery(f"limit is a number from 1 to {LIMIT_MAX}.")
    return int(text)


def _until_s(before: str | None, now_s: float) -> float:
    """The end of the millisecond that `before` names, by the clock of `now_s`."""
    if before is None:
        return inf
    try:
        named = datetime.fromisoformat(before)
    except ValueError:
        raise BadQuery("before is a time, such as 2026-11-26T07:42:10.148Z.") from None
    if named.tzinfo is None:
        named = named.replace(tzinfo=UTC)
    return now_s - time() + named.timestamp() + 0.001
