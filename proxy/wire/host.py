"""Resolves a backend's host to addresses, again and again while it is in use.

A name may move while the proxy runs. After 30 s the next use starts a new lookup, off the loop, and
gets the known addresses meanwhile. A lookup that fails changes nothing. A name that was never found
is looked up less and less often. Only new connections use new addresses. When the addresses have
changed, the epoch increases, and a connection of an earlier epoch is not used again after its
answer.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import Final

from penstock.health.shortage import has_way
from penstock.proxy.wire.lookups import Lookups

logger = logging.getLogger(__name__)

# The usual value of HAProxy and Envoy, and the usual shortest life of a DNS record.
REFRESH_S: Final = 30.0
ADDRESSES_MAX: Final = 16
# The pause after the first failure, doubled after each further one, and its limit.
PAUSE_S: Final = 2.0
PAUSE_S_MAX: Final = 30.0
# Whoever waits longer for a first lookup is told that there is no address; the lookup goes on. It
# is less than a probe's timeout, so that the reason is not that the backend was late.
WAIT_S: Final = 0.8

# Returns the addresses of a name, or raises OSError. Tests replace DNS by it.
Lookup = Callable[[str], Awaitable[Sequence[str]]]


class Names:
    """How names are resolved: by which lookup, how long a result is used and waited for.

    `has_way` tells whether there is a route to an address.
    """

    def __init__(
        self,
        look_up: Lookup | None = None,
        refresh_s: float = REFRESH_S,
        wait_s: float = WAIT_S,
        has_way: Callable[[str], bool] = has_way,
    ) -> None:
        self.look_up: Lookup = look_up or Lookups()
        self.refresh_s = refresh_s
        self.wait_s = wait_s
        self.has_way = has_way


class Host:
    """One host, an address or a name, for the connections and probes of `backend`."""

    __slots__ = (
        "_addresses",
        "_asked_s",
        "_backend",
        "_due_s",
        "_fixed",
        "_looking",
        "_loop",
        "_lost",
        "_names",
        "_now",
        "_pause_s",
        "epoch",
        "name",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        backend: str,
        names: Names,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._loop = loop
        self._backend = backend
        self._names = names
        self._now = now
        self._fixed = _is_address(name)
        self._addresses: tuple[str, ...] = (name,) if self._fixed else ()
        self._due_s = inf if self._fixed else -inf
        self._asked_s = 0.0
        self._pause_s = PAUSE_S  # the pause after the next failure, while there is no address
        self._looking: asyncio.Task[None] | None = None
        self._lost = False  # the last lookup failed
        self.name = name
        self.epoch = 0

    async def addresses(self) -> tuple[str, ...]:
        """The addresses to connect to, in this order. Raises OSError while there is none."""
        if self._looking is None and self._now() >= self._due_s:
            self._asked_s = self._now()
            self._looking = self._loop.create_task(self._look_up())
        if not self._addresses and self._looking is not None:
            await self._first(self._looking)
        if not self._addresses:
            raise OSError("the name has no address")
        return self._addresses

    async def _first(self, looking: asyncio.Task[None]) -> None:
        """Wait until a lookup has ended or takes too long."""
        left_s = self._asked_s + self._names.wait_s - self._now()
        if left_s > 0.0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await asyncio.shield(looking)

    def ask_again(self) -> None:
        """Look up a name that was not found at its next use: something has changed."""
        if not self._addresses and self._due_s < inf:
            self._due_s = -inf

    def failed(self, address: str) -> None:
        """The address did not accept a connection. The next connection tries it last."""
        if len(self._addresses) > 1 and address in self._addresses:
            others = [each for each in self._addresses if each != address]
            self._addresses = (*others, address)

    def has_way(self, address: str) -> bool:
        """Whether there is a route to the address from this machine."""
        return self._names.has_way(address)

    def close(self) -> None:
        """Stop all lookups."""
        self._due_s = inf
        if self._looking is not None:
            self._looking.cancel()

    async def _look_up(self) -> None:
        try:
            found = tuple(dict.fromkeys(await self._names.look_up(self.name)))[:ADDRESSES_MAX]
        except (OSError, UnicodeError):  # no answer, or a name that DNS cannot have
            found = ()
        finally:
            self._looking = None
        if found or self._addresses:
            self._due_s = self._now() + self._names.refresh_s
            self._pause_s = PAUSE_S
        else:
            self._due_s = self._now() + self._pause_s
            self._pause_s = min(2.0 * self._pause_s, PAUSE_S_MAX)
        if not found:
            if self._addresses and not self._lost:
                logger.warning("no address found, keeping the last ones name=%s", self._backend)
            self._lost = True
            return
        self._lost = False
        if set(found) != set(self._addresses):  # name servers change the order alone all the time
            if self._addresses:
                self.epoch += 1
                logger.info("backend has moved to other addresses name=%s", self._backend)
            self._addresses = found


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
