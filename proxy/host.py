"""Where a backend is: the addresses of its host, looked up again while it is in use.

A name may move while the proxy runs. After 30 s the next one who asks has it
looked up again, off the loop, and is answered with what is known meanwhile; a
lookup that fails changes nothing. A name that was never found is looked up ever
more rarely. Only new connections go to new addresses: when they have changed,
the epoch moves, and a connection of an earlier one is not used again once its
answer has ended.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import Final

from proxy.lookups import Lookups

logger = logging.getLogger(__name__)

# As long as HAProxy's and Envoy's usual figures, and a DNS record's shortest usual life.
REFRESH_S: Final = 30.0
ADDRESSES_MAX: Final = 16
# After the first failure, and the most, doubled for each: how soon a new name should serve.
PAUSE_S: Final = 2.0
PAUSE_S_MAX: Final = 30.0
# Those who wait for a first lookup are told that there is no address, and it goes on alone: less
# than a probe's time, so that the reason is not that the backend itself was late.
WAIT_S: Final = 0.8

# The addresses of a name; raises OSError. What tests put in the place of DNS.
Lookup = Callable[[str], Awaitable[Sequence[str]]]


class Names:
    """How names become addresses: who is asked, how long an answer stands and is waited for."""

    def __init__(
        self,
        look_up: Lookup | None = None,
        refresh_s: float = REFRESH_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self.look_up: Lookup = look_up or Lookups()
        self.refresh_s = refresh_s
        self.wait_s = wait_s


class Host:
    """One host, an address or a name, as `backend`'s connections and probes know it."""

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
        self._pause_s = PAUSE_S  # after the next failure, while there is no address
        self._looking: asyncio.Task[None] | None = None
        self._lost = False  # the last lookup failed
        self.name = name
        self.epoch = 0

    async def addresses(self) -> tuple[str, ...]:
        """What to connect to, in this order. Raises OSError while the name has no address."""
        if self._looking is None and self._now() >= self._due_s:
            self._asked_s = self._now()
            self._looking = self._loop.create_task(self._look_up())
        if not self._addresses and self._looking is not None:
            await self._first(self._looking)
        if not self._addresses:
            raise OSError("the name has no address")
        return self._addresses

    async def _first(self, looking: asyncio.Task[None]) -> None:
        """Wait until a lookup has ended, or taken too long."""
        left_s = self._asked_s + self._names.wait_s - self._now()
        if left_s > 0.0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await asyncio.shield(looking)

    def ask_again(self) -> None:
        """Look a name up that was not found, with the next who asks: something has changed."""
        if not self._addresses and self._due_s < inf:
            self._due_s = -inf

    def failed(self, address: str) -> None:
        """It did not take a connection: the next one tries the others first."""
        if len(self._addresses) > 1 and address in self._addresses:
            others = [each for each in self._addresses if each != address]
            self._addresses = (*others, address)

    def close(self) -> None:
        """Look nothing up any more."""
        self._due_s = inf
        if self._looking is not None:
            self._looking.cancel()

    async def _look_up(self) -> None:
        try:
            found = tuple(dict.fromkeys(await self._names.look_up(self.name)))[:ADDRESSES_MAX]
        except (OSError, UnicodeError):  # no answer; no name that DNS could know
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
        if set(found) != set(self._addresses):  # an order alone, servers of names turn
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
