"""Answers that engines make in the background, after their clients were told `queued`.

Such a request keeps its place at the backend. Otherwise a client would have as many as it likes at
once, and the engine's room would be counted as free. The place is given back when somebody asks for
the response and it is over or unknown, when the engine is gone, or when the engine has had time for
the longest answer it may be.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.proxy.data.relay import Relay

# The longest answer that is waited for if its request sets no limit.
TOKENS_MAX: Final = 32_768.0
# So many are kept, of one client and of all. Any further one gives its place back at once, although
# its engine still works on it.
CLIENT_MAX: Final = 512
ALL_MAX: Final = 4_096
LOOK_S: Final = 1.0

Key = tuple[str, str]  # the tenant, and the id of the response


class Background:
    """The leases of answers that are still made."""

    __slots__ = ("_by_client", "_due", "_leases", "_loop", "_now", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._leases: dict[Key, Lease] = {}
        # When each has had its time, and the starts of its engine until then. Clients may choose
        # ids: of those with one id `_leases` has the last.
        self._due: dict[Lease, tuple[float, int]] = {}
        self._by_client: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def keeps(self, lease: Lease, relay: Relay | None) -> bool:
        """Take over the lease of a request whose answer is still made. False: it is not.

        An answer that tells of a response which is over ends the lease of that one.
        """
        if relay is None:
            return False
        ask = lease.ask
        if not ask.engine:
            if relay.is_over:
                self._over((ask.tenant, relay.response_id))
            return False
        if lease.ended or not relay.goes_on:
            return False
        mine = self._by_client.get(ask.client, 0)
        if mine >= CLIENT_MAX or len(self) >= ALL_MAX:
            return False
        now_s = self._now()
        self._by_client[ask.client] = mine + 1
        self._leases[ask.tenant, relay.response_id] = lease
        self._due[lease] = now_s + _longest_s(lease), lease.backend.restarts
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)
        return True

    def unknown(self, ask: Ask, backend: Backend) -> None:
        """A backend does not know the response that is asked for: its engine is another one."""
        if ask.response_id is not None:
            key = ask.tenant, ask.response_id
            lease = self._leases.get(key)
            if lease is not None and lease.backend is backend:
                self._over(key)

    def _look(self) -> None:
        """End those that have had their time, or whose engine is gone."""
        self._timer, now_s = None, self._now()
        for lease, (due_s, restarts) in list(self._due.items()):
            backend = lease.backend
            if now_s >= due_s or not backend.healthy or backend.restarts != restarts:
                self._end(lease)
        left = self._due.keys()
        self._leases = {key: lease for key, lease in self._leases.items() if lease in left}
        if self._due:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _over(self, key: Key) -> None:
        lease = self._leases.pop(key, None)
        if lease is not None and lease in self._due:
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        del self._due[lease]
        lease.end(self._now())
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
