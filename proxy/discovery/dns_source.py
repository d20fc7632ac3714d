"""Backends from DNS: every address of a name, or the targets of its SRV records.

The name is asked for again when its answer is no longer valid. No answer tells that it is complete,
so an empty one keeps the last list, and so does one that fails. Of a name with addresses of both
families those of IPv4 count: the others are the same servers once more.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Protocol

from penstock.proxy.discovery.found import Entries, Found, Unusable

# However long an answer is valid, it is asked for again after so long: at least, and at most.
LEAST_S: Final = 1.0
MOST_S: Final = 30.0
# After a question that failed.
RETRY_S: Final = 2.0
TIMEOUT_S: Final = 2.0
TRIES: Final = 2
# c-ares' codes of answers that say that there is no such name, or no record of this kind.
_NONE: Final = frozenset({1, 4})


@dataclass(frozen=True, slots=True)
class Records:
    """What is known of a name. `values`: addresses, or `host:port` of each SRV record."""

    values: tuple[str, ...] = ()
    ttl_s: float = 0.0


class Unanswered(Exception):
    """A question was not answered. The text is for people."""


class Resolver(Protocol):
    async def ask(self, name: str, kind: str) -> Records:
        """The records of kind A, AAAA or SRV. None if the answer says so. Raises Unanswered."""
        ...


class Cares:
    """Asks the system's servers, or the one at `server` (`address:port`)."""

    def __init__(self, server: str | None) -> None:
        self._servers = [server] if server is not None else None

    async def ask(self, name: str, kind: str) -> Records:
        import aiodns
        import pycares

        # One for each question: it would answer from its cache, also when no server is left.
        resolver = aiodns.DNSResolver(self._servers, timeout=TIMEOUT_S, tries=TRIES)
        try:
            told = await resolver.query_dns(name, kind)
        except aiodns.error.DNSError as error:
            code, text = error.args[0], error.args[-1]
            if code in _NONE:
                return Records()
            raise Unanswered(str(text)) from None
        finally:
            await resolver.close()
        values, ttls = [], []
        for record in told.answer:
            data = record.data
            if isinstance(data, pycares.SRVRecordData):
                values.append(f"{data.target.rstrip('.')}:{data.port}")
            elif isinstance(data, (pycares.ARecordData, pycares.AAAARecordData)):
                values.append(data.addr)
            else:
                continue  # an alias on the way
            ttls.append(record.ttl)
        return Records(tuple(sorted(values)), float(min(ttls, default=0)))


class DnsSource:
    """Tells what `NAME:PORT` or `_port._tcp.NAME` stands for. `https://` may precede either."""

    def __init__(self, name: str, entries: Entries, resolver: Resolver) -> None:
        self._scheme = "https" if name.startswith("https://") else "http"
        self._name = name.rpartition("://")[2]
        self._entries = entries
        self._resolver = resolver

    async def watch(self, tell: Callable[[Found | Unusable], None]) -> None:
        """Tell what the name stands for, until it is cancelled."""
        while True:
            answer, rest_s = await self.look()
            tell(answer)
            await asyncio.sleep(rest_s)

    async def look(self) -> tuple[Found | Unusable, float]:
        """What the name stands for now, and when to ask again."""
        name, _, port = self._name.rpartition(":")
        kinds = ["A", "AAAA"] if port and name else ["SRV"]
        records = Records()
        try:
            for kind in kinds:
                records = await self._resolver.ask(name or self._name, kind)
                if records.values:
                    break
        except Unanswered as error:
            return Unusable(f"{name or self._name} is not resolved: {error}"), RETRY_S
        urls = [
            f"{self._scheme}://{value if kinds == ['SRV'] else _authority(value, port)}"
            for value in records.values
        ]
        return self._entries.found(urls), min(MOST_S, max(LEAST_S, records.ttl_s))


def _authority(address: str, port: str) -> str:
    return f"[{address}]:{port}" if ip_address(address).version == 6 else f"{address}:{port}"
