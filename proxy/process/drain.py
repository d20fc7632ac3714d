"""The drain: from SIGTERM to the exit without dropping a request.

Readiness answers 503 at once. Requests are still served, because a load balancer needs
a moment to notice. Every answer says `Connection: close`. Then the listener closes; in
a socket shared with another process, waiting connections are for that process. Idle
connections close and running answers may finish. Every accepted client is served.
Answers that outlive the timeout are broken off.
"""

import asyncio
import logging
from time import monotonic
from typing import Final

from penstock.conf.settings import DrainSettings
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.port import Port

logger = logging.getLogger(__name__)

POLL_S: Final = 0.05
LAST_WORDS_S: Final = 0.5
TELL_S: Final = 10.0  # how often a drain tells what is left


async def drain(
    plane: DataPlane, port: Port, settings: DrainSettings, hurry: asyncio.Event
) -> None:
    """Return when every answer has ended or `timeout_s` is over. `hurry` ends it at once."""
    plane.draining = True
    plane.mirrors.end_all()
    for client in plane.clients:
        client.announce_close()
    logger.info("draining grace_s=%g clients=%d", settings.grace_s, len(plane.clients))
    await _wait(hurry, settings.grace_s)
    plane.closing = True
    await port.close()
    for client in list(plane.clients):
        client.close_if_idle()
    await _wait(hurry, POLL_S)  # connections just accepted appear in the next turn of the loop
    await _until_gone(plane, hurry, settings.timeout_s)
    if plane.clients:
        logger.warning("drain over, breaking off clients=%d", len(plane.clients))
    else:
        logger.info("drain over, every request has ended")
    for client in list(plane.clients):
        client.break_off()
    await _until_gone(plane, asyncio.Event(), LAST_WORDS_S)


async def _until_gone(plane: DataPlane, hurry: asyncio.Event, time_s: float) -> None:
    ends_s, told_s = monotonic() + time_s, monotonic()
    while plane.clients and monotonic() < ends_s and not hurry.is_set():
        await _wait(hurry, POLL_S)
        if monotonic() - told_s >= TELL_S:
            told_s = monotonic()
            logger.info("still draining clients=%d", len(plane.clients))


async def _wait(event: asyncio.Event, time_s: float) -> None:
    try:
        async with asyncio.timeout(time_s):
            await event.wait()
    except TimeoutError:
        return
