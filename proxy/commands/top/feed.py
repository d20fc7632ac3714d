"""The stream of snapshots: reads it, notices when it stops, and begins again, each time later."""

import asyncio
import os
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol

import aiohttp
import orjson

from penstock.proxy.commands.top.event_buffer import EventBuffer, TooLong
from penstock.proxy.commands.top.link import Link

PATH: Final = "/api/v1/events"
CONNECT_S: Final = 5.0
# An event comes each second.
SILENT_S: Final = 6.0
REFUSAL_BYTES_MAX: Final = 65_536
WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)


class Viewer(Protocol):
    """Who looks at the snapshots."""

    def heard(self, snapshot: Mapping[str, Any]) -> None:
        """There is a new one."""

    def became(self, link: Link) -> None:
        """The stream stands differently."""


def wait_s(failures: int, rng: Random) -> float:
    """How long to wait after so many tries without news. Many viewers do not come at once."""
    return WAITS_S[min(failures, len(WAITS_S) - 1)] * rng.uniform(0.75, 1.25)


class Feed:
    """Tells a viewer all that the admin port at `url` says. `clock`: the time, Unix."""

    def __init__(
        self, url: str, headers: Mapping[str, str], clock: Callable[[], float], rng: Random
    ) -> None:
        self._url = url + PATH
        self._headers = headers
        self._clock = clock
        self._rng = rng
        self._heard_at = clock()
        self._failures = 0

    async def run(self, viewer: Viewer) -> None:
        """Go on until it is cancelled."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            while True:
                why = await self._read(session, viewer)
                viewer.became(Link("lost", self._heard_at, why))
                await asyncio.sleep(wait_s(self._failures, self._rng))
                self._failures += 1

    async def _read(self, session: aiohttp.ClientSession, viewer: Viewer) -> str:
        """Read one stream to its end. Returns why it ended."""
        buffer = EventBuffer()
        try:
            async with session.get(self._url, allow_redirects=False) as answer:
                if answer.status != 200:
                    return await _refusal(answer)
                async for piece in answer.content.iter_any():
                    event = buffer.add(piece)
                    if event is not None:
                        self._tell(orjson.loads(event), viewer)
        except (TooLong, orjson.JSONDecodeError):
            return "This is no stream of penstock."
        except TimeoutError:
            return f"Nothing came for {SILENT_S:.0f} s."
        except (aiohttp.ClientError, OSError) as error:
            return f"{_said(error)}."
        return "The stream ended."

    def _tell(self, snapshot: Mapping[str, Any], viewer: Viewer) -> None:
        self._heard_at = self._clock()
        self._failures = 0
        viewer.became(Link("live", self._heard_at))
        viewer.heard(snapshot)


async def _refusal(answer: aiohttp.ClientResponse) -> str:
    """What an answer without a stream says."""
    if answer.status == 401:
        return "The admin token is wrong or missing (--token-file)."
    try:
        told = orjson.loads(await answer.content.read(REFUSAL_BYTES_MAX))
        return str(told["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"The answer is {answer.status}, and not a stream of penstock."


def _said(error: BaseException) -> str:
    """In the words of the system, if it is an error of the system."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__
