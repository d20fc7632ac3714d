"""Resolves a backend's host to addresses, again and again while it is in use.

A name may move while the proxy runs. After 30 s the next use starts a new lookup, off the loop, and
gets the known addresses meanwhile. A lookup that fails changes nothing. A name that was never found
is looked up less and less often. Only new connections use new addresses. When the addresses have
changed, the epoch increases, and a connection of an earlier epoch is not used again after its
answer.

The system's resolver blocks while a name server does not answer, and nothing can stop it. So each
lookup has a thread of its own, one at a time for each name, and their number has a limit. Names
that were not found when they were asked for last start only while half of the threads are free.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import Final

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

THREADS_MAX: Final = 64
# Of these, for names that are not known to be found.
DOUBTFUL_MAX: Final = THREADS_MAX // 2
# Beyond this many names the oldest are forgotten.
KNOWN_MAX: Final = 4_096

# Blocks. Raises OSError or UnicodeError.
Resolve = Callable[[str], Sequence[str]]
# Runs a call beside the loop. Raises RuntimeError.
Beside = Callable[[Callable[[], None]], None]

# No descriptor or no kernel memory: no other backend could be reached either. EADDRNOTAVAIL is not
# one of these: either no local port is left for this destination, or there is no route to it (an
# IPv6 address where IPv6 is off).
OWN_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ANY_PORT: Final = 9
# Returns the addresses of a name, or raises OSError. Tests replace DNS by it.
Lookup = Callable[[str], Awaitable[Sequence[str]]]


def has_way(address: str) -> bool:
    """Whether the kernel has a route to this address and a local address to send from.

    Connecting a datagram socket asks just that. It sends nothing and takes no TCP port.
    """
    try:
        with socket.socket(
            socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
        ) as sock:
            sock.connect((address, _ANY_PORT))
    except OSError as error:
        # Without a descriptor or a datagram port the kernel could not be asked: assume a route.
        return error.errno in OWN_ERRORS or error.errno == errno.EAGAIN
    return True


def resolve(name: str) -> Sequence[str]:
    """Ask the system's resolver."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


def in_thread(call: Callable[[], None]) -> None:
    """Run a call in a thread for which the end of the process does not wait."""
    threading.Thread(target=call, name="lookup", daemon=True).start()


class Lookups:
    """Looks names up for one loop. It is a `Lookup`."""

    def __init__(
        self,
        resolve: Resolve = resolve,
        beside: Beside = in_thread,
    ) -> None:
        self._resolve = resolve
        self._beside = beside
        self._busy = 0
        self._under_way: dict[str, asyncio.Future[Sequence[str]]] = {}
        self._waiting: deque[str] = deque()
        self._doubtful: deque[str] = deque()
        self._found: dict[str, None] = {}  # those that were found when they were asked for last

    async def __call__(self, name: str) -> Sequence[str]:
        """The addresses of a name, none if it is not found. Concurrent calls share one lookup."""
        found = self._under_way.get(name)
        if found is None:
            found = self._under_way[name] = asyncio.get_running_loop().create_future()
            (self._waiting if name in self._found else self._doubtful).append(name)
            self._begin()
        return await asyncio.shield(found)

    def _begin(self) -> None:
        for waiting, most in ((self._waiting, THREADS_MAX), (self._doubtful, DOUBTFUL_MAX)):
            while waiting and self._busy < most:
                self._busy += 1
                self._look_up(waiting.popleft())

    def _look_up(self, name: str) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            found: Sequence[str] = ()
            try:
                found = self._resolve(name)
            except (OSError, UnicodeError):  # no answer, or a name that DNS cannot have
                pass
            finally:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._ended, name, found)

        try:
            self._beside(run)
        except RuntimeError:  # no thread can be started
            loop.call_soon(self._ended, name, ())

    def _ended(self, name: str, found: Sequence[str]) -> None:
        self._busy -= 1
        self._found.pop(name, None)
        if found:
            self._found[name] = None
        if len(self._found) > KNOWN_MAX:
            del self._found[next(iter(self._found))]
        self._under_way.pop(name).set_result(found)
        self._begin()


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

    @property
    def servers(self) -> int:
        """How many addresses of one family the name has: probably as many servers."""
        return max(Counter(":" in each for each in self._addresses).values(), default=0)

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
        """The address was too slow to accept a connection. The next connection tries it last."""
        if len(self._addresses) > 1 and address in self._addresses:
            others = [each for each in self._addresses if each != address]
            self._addresses = (*others, address)

    def has_way(self, address: str) -> bool:
        """Whether there is a route to the address from this machine."""
        return self._names.has_way(address)

    def close(self) -> None:
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
