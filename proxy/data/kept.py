"""What is held for clients that no running request needs, and who loses it when memory is short.

That is half a body, an unfinished head or an idle connection. The holder that keeps most loses its
largest first. A holder that keeps less than half as much loses nothing. Clients without an accepted
request are closed before these (`clients.py`). Unread answers are in `unread.py`.
"""

import asyncio
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from typing import Final

from penstock.proxy.data.client import Client

# What was kept for a shorter time may still be used.
HELD_S: Final = 1.0
# If all that is kept is a smaller part of what is lacking, taking it would help nobody.
PART_MIN: Final = 1 / 8
# What an idle connection takes. With TLS it was measured over 3,600 of them: 29 KB.
PLAIN_BYTES: Final = 4_096
TLS_BYTES: Final = 32_768


def connection_bytes(transport: asyncio.Transport) -> int:
    """What a connection takes beside the bytes that wait in it."""
    return PLAIN_BYTES if transport.get_extra_info("ssl_object") is None else TLS_BYTES


def losers(
    clients: Iterable[Client], over_bytes: int, *, refusing: bool
) -> tuple[list[Client], int]:
    """The clients that should give up what they keep to free `over_bytes`, and what that frees.

    `refusing`: requests are refused for lack of memory. Only then half bodies go.
    """
    found: list[Client] = []
    freed_bytes = 0
    if over_bytes <= 0:
        return found, freed_bytes
    kept: dict[str, list[tuple[int, int, Client]]] = {}
    for number, client in enumerate(clients):
        size_bytes = client.kept_bytes(refusing=refusing) if client.proven else 0
        if size_bytes:
            kept.setdefault(client.holder, []).append((size_bytes, number, client))
    holders = []
    for name, entries in kept.items():
        entries.sort()
        holders.append((-sum(size_bytes for size_bytes, _, _ in entries), name))
    heapify(holders)
    least_bytes = -holders[0][0] / 2 if holders else 0.0
    while holders and freed_bytes < over_bytes and -holders[0][0] >= least_bytes:
        below_bytes, name = holders[0]
        size_bytes, _, client = kept[name].pop()
        freed_bytes += size_bytes
        found.append(client)
        if kept[name]:
            heapreplace(holders, (below_bytes + size_bytes, name))
        else:
            heappop(holders)
    return (found, freed_bytes) if freed_bytes >= PART_MIN * over_bytes else ([], 0)
