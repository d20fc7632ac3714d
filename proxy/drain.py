"""Leaving without dropping anything: what happens between SIGTERM and the exit.

Readiness turns 503 at once while requests are still served, because a load
balancer needs a moment to notice; every answer says `Connection: close`. Then
the listener closes (what waits in a socket that others hold too is theirs), idle
connections close, and running answers may finish. Whoever was accepted is
served. What outlives the timeout is broken off.
"""

import asyncio
import logging
from time import monotonic
from typing import Final

from conf.settings import DrainSettings
from proxy.plane import DataPlane

logger = logging.getLogger(__name__)

POLL_S: Final = 0.05
LAST_WORDS_S: Final = 0.5


async def drain(
    plane: DataPlane, server: asyncio.Server, settings: DrainSettings, hurry: asyncio.Event
) -> None:
    """Return when every answer has ended or `timeout_s` is over; `hurry` ends it at once."""
    plane.draining = True
    for client in plane.clients:
        client.announce_close()
    logger.info("draining grace_s=%g clients=%d", settings.grace_s, len(plane.clients))
    await _wait(hurry, settings.grace_s)
    plane.closing = True
    server.close()
    for client in list(plane.clients):
        client.close_if_idle()
    await _wait(hurry, POLL_S)  # those accepted in this turn of the loop are told to us in the next
    await _until_gone(plane, hurry, settings.timeout_s)
    if plane.clients:
        logger.warning("drain over, breaking off clients=%d", len(plane.clients))
    for client in list(plane.clients):
        client.break_off()
    await _until_gone(plane, asyncio.Event(), LAST_WORDS_S)


async def _until_gone(plane: DataPlane, hurry: asyncio.Event, time_s: float) -> None:
    ends_s = monotonic() + time_s
    while plane.clients and monotonic() < ends_s and not hurry.is_set():
        await _wait(hurry, POLL_S)


async def _wait(event: asyncio.Event, time_s: float) -> None:
    try:
        async with asyncio.timeout(time_s):
            await event.wait()
    except TimeoutError:
        return
