"""The stream of snapshots: reads it, notices when it stops, and begins again, each time later."""

import asyncio
import os
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Literal, NamedTuple, Protocol

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError

from penstock.proxy.commands.top.lines import clock

PATH: Final = "/api/v1/events"
CONNECT_S: Final = 5.0
# An event comes each second.
SILENT_S: Final = 6.0
REFUSAL_BYTES_MAX: Final = 65_536
# Larger than any snapshot: a longer line is no event of penstock.
EVENT_BYTES_MAX: Final = 67_108_864
WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
_DATA: Final = b"data: "


class Link(NamedTuple):
    """How the stream stands. `since`: the time of the last news, Unix. `why`: what went wrong."""

    state: Literal["connecting", "live", "lost"]
    since: float
    why: str = ""

    @property
    def trouble(self) -> str:
        """What the first line says. Nothing while all is well."""
        if self.state != "lost":
            return ""
        return f"! No news since {clock(self.since)}: {self.why} It tries again by itself."


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
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, read_bufsize=EVENT_BYTES_MAX // 2
        ) as session:
            while True:
                why = await self._read(session, viewer)
                viewer.became(Link("lost", self._heard_at, why))
                await asyncio.sleep(wait_s(self._failures, self._rng))
                self._failures += 1

    async def _read(self, session: aiohttp.ClientSession, viewer: Viewer) -> str:
        """Read one stream to its end. Returns why it ended."""
        try:
            async with session.get(self._url, allow_redirects=False) as answer:
                if answer.status != 200:
                    return await _refusal(answer)
                async for line in answer.content:
                    if line.startswith(_DATA) and line.endswith(b"\n"):
                        snapshot = orjson.loads(line.removeprefix(_DATA))
                        self._heard_at, self._failures = self._clock(), 0
                        viewer.became(Link("live", self._heard_at))
                        viewer.heard(snapshot)
        except (ValueError, HttpProcessingError):  # no JSON, or a line without an end
            return "This is no stream of penstock."
        except TimeoutError:
            return f"Nothing came for {SILENT_S:.0f} s."
        except (aiohttp.ClientError, OSError) as error:
            number = getattr(error, "errno", None)
            said = os.strerror(number) if number else str(error) or type(error).__name__
            return f"{said}."
        return "The stream ended."


async def _refusal(answer: aiohttp.ClientResponse) -> str:
    """What an answer without a stream says."""
    if answer.status == 401:
        return "The admin token is wrong or missing (--token-file)."
    try:
        told = orjson.loads(await answer.content.read(REFUSAL_BYTES_MAX))
        return str(told["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"The answer is {answer.status}, and not a stream of penstock."
