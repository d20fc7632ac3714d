"""Answers that engines make in the background, after their clients were told `queued`.

Such a request keeps its place at the backend. Otherwise a client would have as many as it likes at
once, and the engine's room would be counted as free. The place is given back when somebody asks for
the response and it is over, or when the engine has had time for the longest answer it may be.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.balancing.lease import Lease
from penstock.proxy.data.relay import Relay

# The longest answer that is waited for if its request sets no limit.
TOKENS_MAX: Final = 32_768.0
# So many are kept, of one client and of all. Further ones are forgotten as if they were over.
CLIENT_MAX: Final = 512
ALL_MAX: Final = 4_096


class Background:
    """The leases of answers that are still made, by the ids of their responses."""

    __slots__ = ("_by_client", "_count", "_leases", "_loop", "_now")

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._leases: dict[str, Lease] = {}
        # How many there are, also of those whose id another one took: of each client, and of all.
        self._by_client: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def keeps(self, lease: Lease, relay: Relay | None) -> bool:
        """Take over the lease of a request whose answer is still made. False: it is not.

        An answer that tells of a response which is over ends the lease of that one.
        """
        if relay is None or not relay.response_id:
            return False
        if not lease.ask.engine:
            if not relay.goes_on:
                self._over(relay.response_id)
            return False
        if lease.ended or not relay.goes_on:
            return False
        mine = self._by_client.get(lease.ask.client, 0)
        if mine >= CLIENT_MAX or self._count >= ALL_MAX:
            return False
        self._by_client[lease.ask.client] = mine + 1
        self._count += 1
        self._leases[relay.response_id] = lease
        self._loop.call_later(_longest_s(lease), partial(self._expire, relay.response_id, lease))
        return True

    def _over(self, response_id: str) -> None:
        lease = self._leases.pop(response_id, None)
        if lease is not None:
            self._end(lease)

    def _expire(self, response_id: str, lease: Lease) -> None:
        if self._leases.get(response_id) is lease:  # a client may have given it to another one
            del self._leases[response_id]
        self._end(lease)

    def _end(self, lease: Lease) -> None:
        if lease.ended:
            return
        lease.end(self._now())
        self._count -= 1
        client = lease.ask.client
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]


def _longest_s(lease: Lease) -> float:
    """How long its engine may work on it, at the measured speeds."""
    backend, ask = lease.backend, lease.ask
    tokens = min(TOKENS_MAX, float(ask.max_tokens or TOKENS_MAX))
    step_s = backend.decode_speed.itl_s(backend.active_decode_tokens)
    return lease.ahead_work * backend.prefill_speed.work_s + tokens * step_s
