"""The requests that run, found among all connections in steps between which others run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from heapq import merge
from typing import Final

from penstock.proxy.data.account import kept_of
from penstock.proxy.data.ending import EndingConnection
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.telemetry.recent import Kept

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
