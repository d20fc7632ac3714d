"""Keeps a copy of some objects of an API server: a list, and then a watch from its version on.

The rules are the API's own. A version that is too old (410, as a status or as an event) needs a new
list. A watch ends after some minutes, and the next one goes on from the last version, also after a
cut in the middle of an event. A watch that ends at once is not asked for again at once.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import aiohttp
import orjson

from penstock.proxy.discovery.cluster import Cluster, NoCluster

logger = logging.getLogger(__name__)

# How long a watch lasts. The server closes it then. If its connection is dead, that is noticed
# SILENCE_S later.
WATCH_S: Final = 240.0
SILENCE_S: Final = 30.0
LIST_S: Final = 30.0
PAGE: Final = "500"
EVENT_BYTES_MAX: Final = 8_388_608
# The pause after a failure, doubled after each further one.
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0
# A watch that has told nothing and ended earlier is a failure.
SHORT_S: Final = 1.0

Items = Mapping[str, Mapping[str, Any]]


class Gone(Exception):
    """The version is too old: list again."""


class Refused(Exception):
    """The server does not answer. The text is for people."""


class ListWatch:
    """Follows the objects at `path` with this query. `changed` is called with all of them, by name,
    each time that one has changed; `failed` with the reason why they are not known."""

    def __init__(
        self,
        cluster: Cluster,
        path: str,
        query: Mapping[str, str],
        changed: Callable[[Items], None],
        failed: Callable[[str], None],
        rng: Random,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._path = path
        self._query = dict(query)
        self._changed = changed
        self._failed = failed
        self._rng = rng
        self._now = now
        self._items: dict[str, Mapping[str, Any]] = {}
        self._version = ""

    async def follow(self) -> None:
        """Go on until it is cancelled."""
        pause_s = 0.0
        while True:
            try:
                await self._list()
                while True:
                    await self._watch_once()
                    pause_s = 0.0  # a list alone is not enough: the right to watch may be missing
            except Gone:
                logger.info("the watch is too old, listing again path=%s", self._path)
            except (Refused, NoCluster) as error:
                self._failed(str(error))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                self._failed(f"the API server does not answer: {type(error).__name__}")
                await self._cluster.close()  # its certificates may have been renewed
            await asyncio.sleep(pause_s * self._rng.uniform(0.8, 1.2))
            pause_s = min(PAUSE_S_MAX, max(PAUSE_S, 2.0 * pause_s))

    async def _list(self) -> None:
        items: dict[str, Mapping[str, Any]] = {}
        query = self._query | {"limit": PAGE}
        while True:
            async with await self._cluster.get(self._path, query, LIST_S) as answer:
                await self._check(answer)
                told = orjson.loads(await answer.read())
            items |= {each["metadata"]["name"]: each for each in told.get("items") or ()}
            query["continue"] = told["metadata"].get("continue") or ""
            if not query["continue"]:
                break
        self._version = told["metadata"]["resourceVersion"]
        self._items = items
        self._changed(items)

    async def _watch_once(self) -> None:
        """One watch, to its end."""
        lasts_s = WATCH_S * self._rng.uniform(0.8, 1.2)
        query = self._query | {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(lasts_s)),
        }
        began_s, version = self._now(), self._version
        try:
            async with await self._cluster.get(self._path, query, lasts_s + SILENCE_S) as answer:
                await self._check(answer)
                await self._read(answer)
        except aiohttp.ClientPayloadError:
            pass  # it was cut: the next one goes on from the last version
        if self._version == version and self._now() - began_s < SHORT_S:
            await asyncio.sleep(PAUSE_S * self._rng.uniform(0.8, 1.2))

    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        rest = b""
        async for part in answer.content.iter_any():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line:
                    self._take(orjson.loads(line))
            if any(lines):
                self._changed(self._items)
            if len(rest) > EVENT_BYTES_MAX:
                raise Refused(f"an event has more than {EVENT_BYTES_MAX:,} bytes")

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, told = event["type"], event["object"]
        if kind == "ERROR":
            if told.get("code") == 410:
                raise Gone
            raise Refused(f"the watch failed: {_reason(told)}")
        self._version = told["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        name = told["metadata"]["name"]
        if kind == "DELETED":
            self._items.pop(name, None)
        else:
            self._items[name] = told

    async def _check(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status == 200:
            return
        if answer.status == 410:
            raise Gone
        try:
            told = orjson.loads(await answer.read())
        except ValueError:
            told = {}
        raise Refused(f"{answer.status}: {_reason(told)}")


def _reason(told: object) -> str:
    """What the server says; for 403 that names the missing right."""
    message = told.get("message") if isinstance(told, dict) else None
    return str(message)[:300] if message else "no reason is told"
