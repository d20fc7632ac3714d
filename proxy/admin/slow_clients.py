"""Which clients do not take what came for them, by pool. Asked once a second, some at a time.

Connections that want nothing are passed over. So nobody hides slow clients behind idle ones.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from penstock.balancing.fleet import UnknownModel
from penstock.proxy.data.client import Client
from penstock.proxy.data.ending import EndingConnection
from penstock.proxy.data.plane import DataPlane

# A client that has not taken so much, also at the look before, is slow.
UNTAKEN_BYTES: Final = 16_384
# So many are looked at in one turn of the loop, and in all: each look takes a system call.
AT_ONCE: Final = 64
CLIENTS_MAX: Final = 4_096


@dataclass(slots=True)
class Reading:
    """The clients of one pool that want something, and those of them that are slow."""

    clients: int = 0
    slow: int = 0
    slow_by_tenant: Counter[str] = field(default_factory=Counter)


NOBODY: Final = Reading()


class SlowClients:
    """Remembers who was behind at the last look."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._behind: set[Client] = set()
        self._looked_s = 0.0  # when it looked last
        self._begin = 0

    async def look(self) -> Mapping[str, Reading]:
        """What is known now, by pool."""
        found: dict[str, Reading] = {}
        since_s, self._looked_s = self._looked_s, self._plane.now()
        before, self._behind = self._behind, set()
        clients, looked = list(self._plane.clients), 0
        begin = self._begin % max(1, len(clients))
        self._begin = begin + CLIENTS_MAX  # of more than that others are looked at next time
        for number, client in enumerate(chain(clients[begin:], clients[:begin]), 1):
            if not number % AT_ONCE:
                await asyncio.sleep(0)
            # Who wants nothing now may still have to take the end of an answer, as before.
            if (client.waits and client not in before) or not (pool := self._pool_of(client)):
                continue
            behind = client.untaken_bytes >= UNTAKEN_BYTES
            if behind or not client.waits:
                self._count(found.setdefault(pool, Reading()), client, before, behind=behind)
                if behind and client in before:
                    self._tell(client, since_s)
            looked += 1
            if looked == CLIENTS_MAX:
                break
        return found

    def _count(
        self, reading: Reading, client: Client, before: set[Client], *, behind: bool
    ) -> None:
        reading.clients += 1
        if behind:
            self._behind.add(client)
        if behind and client in before:
            reading.slow += 1
            reading.slow_by_tenant[client.tenant] += 1

    def _tell(self, client: Client, since_s: float) -> None:
        """Note in its request's record that it was behind, while more came."""
        request = client.request if isinstance(client, EndingConnection) else None
        if request is not None and not request.record.stalled_since_s:
            began_s = request.record.received_s
            request.record.behind_s += self._looked_s - max(since_s, began_s)

    def _pool_of(self, client: Client) -> str:
        """Empty: it has asked for nothing that a pool serves."""
        request = client.request if isinstance(client, EndingConnection) else None
        if client.pool or request is None:
            return client.pool
        try:  # it waits, and no backend is chosen yet
            return self._plane.fleet.resolve(request.ask)[0].name
        except UnknownModel:
            return ""
