"""Backends from DNS: every address of a name, or the targets of its SRV records.

The name is asked for again when its answer is no longer valid. No answer tells that it is complete,
so an empty one keeps the last list, and so does one that fails.
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
        import aiodns
        import pycares

        servers = [server] if server is not None else None
        self._error: type[Exception] = aiodns.error.DNSError
        self._kinds = pycares.ARecordData, pycares.AAAARecordData, pycares.SRVRecordData
        self._resolver = aiodns.DNSResolver(servers, timeout=TIMEOUT_S, tries=TRIES)

    async def ask(self, name: str, kind: str) -> Records:
        try:
            told = await self._resolver.query_dns(name, kind)
        except self._error as error:
            code, text = error.args[0], error.args[-1]
            if code in _NONE:
                return Records()
            raise Unanswered(str(text)) from None
        v4, v6, srv = self._kinds
        values, ttls = [], []
        for record in told.answer:
            data = record.data
            if isinstance(data, srv):
                values.append(f"{data.target.rstrip('.')}:{data.port}")
            elif isinstance(data, (v4, v6)):
                values.append(data.addr)
            else:
                continue  # an alias on the way
            ttls.append(record.ttl)
        return Records(tuple(sorted(values)), float(min(ttls, default=0)))


class DnsSource:
    """Tells what a name stands for: `NAME:PORT`, or `_port._tcp.NAME`, after `https://` or not."""

    def __init__(self, name: str, entries: Entries, resolver: Resolver) -> None:
        self._scheme = "https" if name.startswith("https://") else "http"
        self._name = name.partition("://")[2] or name
        self._entries = entries
        self._resolver = resolver
        self._kinds: set[str] = set()  # those that had records in the last list

    async def watch(self, tell: Callable[[Found | Unusable], None]) -> None:
        """Tell what the name stands for, until it is cancelled."""
        while True:
            answer, rest_s = await self.look()
            tell(answer)
            await asyncio.sleep(rest_s)

    async def look(self) -> tuple[Found | Unusable, float]:
        """What the name stands for now, and when to ask again."""
        if self._name.startswith("_"):
            kinds, name, port = ["SRV"], self._name, ""
        else:
            name, _, port = self._name.rpartition(":")
            kinds = ["A", "AAAA"]
        told = await asyncio.gather(*[self._ask(name, kind) for kind in kinds])
        failed = [each for each in told if isinstance(each, Unanswered)]
        answered = {
            kind: each
            for kind, each in zip(kinds, told, strict=True)
            if isinstance(each, Records) and each.values
        }
        # A family that never had an address may fail: some servers do not know AAAA.
        if failed and (not answered or self._kinds - answered.keys()):
            return Unusable(f"{name} is not resolved: {failed[0]}"), RETRY_S
        if answered:
            self._kinds = set(answered)
        rest_s = min([each.ttl_s for each in answered.values()], default=0.0)
        entries = [
            f"{self._scheme}://{_authority(value, port)}"
            for each in answered.values()
            for value in each.values
        ]
        return self._entries.found(entries), min(MOST_S, max(LEAST_S, rest_s))

    async def _ask(self, name: str, kind: str) -> Records | Unanswered:
        try:
            return await self._resolver.ask(name, kind)
        except Unanswered as error:
            return error


def _authority(value: str, port: str) -> str:
    if not port:
        return value
    return f"[{value}]:{port}" if ip_address(value).version == 6 else f"{value}:{port}"
