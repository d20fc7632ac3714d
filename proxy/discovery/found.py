"""What a source has told: backends, checked and named. A wrong entry loses itself only.

An entry has the keys of `pools[].backends[]`, except API keys and file names. It needs no name:
without one its address is the name, so that the same server has the same name in every answer.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from penstock.conf.complaints import complaints
from penstock.conf.pools import BackendSettings

# As many backends as a pool may list.
BACKENDS_MAX: Final = 8_192
NAME_CHARS_MAX: Final = 63
# What an entry may say. A source holds no secrets.
KEYS: Final = frozenset({"name", "url", "weight", "max_requests", "gpu_metrics_url"})
_ODD: Final = re.compile(r"[^a-zA-Z0-9._-]+")
_NUMBERS: Final = re.compile(r"(0x[0-9a-f]+|[0-9]+)(\.(0x[0-9a-f]+|[0-9]+))*", re.IGNORECASE)

Entry = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Found:
    """One answer of a source: backends of different URLs, and a line for each entry that is none.

    `whole`: the source knows that there are no others, so an empty answer means that there is none.
    """

    backends: tuple[BackendSettings, ...]
    faults: tuple[str, ...] = ()
    whole: bool = False


class Unusable(Exception):
    """Why a source told nothing. The text is for people."""


class Allowed:
    """Which hosts a source may name: by their addresses, in all ways of writing one."""

    def __init__(self, networks: Sequence[str]) -> None:
        """`networks`: an empty list allows all but loopback and link-local addresses."""
        self._networks = [ip_network(each) for each in networks]

    def why_not(self, url: str) -> str:
        """Why the host of this URL may not be taken. Empty: it may."""
        host = (urlsplit(url).hostname or "").rstrip(".")
        try:
            address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
        except ValueError:
            if _NUMBERS.fullmatch(host):  # `127.1` and `0x7f000001` are 127.0.0.1 to resolvers
                return f"{host} is not the usual form of an address"
            own = host == "localhost" or host.endswith(".localhost")
            return "its address is loopback" if own and not self._networks else ""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if self._networks:
            listed = any(address in each for each in self._networks)
            return "" if listed else "its address is not in discover.allow"
        if address.is_loopback or address.is_unspecified:
            return "its address is loopback"
        return "its address is link-local" if address.is_link_local else ""


class Entries:
    """Checks the entries of one source. What it knows it need not check again.

    `prefix`: before names that no person has given: pools could have the same.
    """

    def __init__(self, allowed: Allowed, prefix: str = "") -> None:
        self._allowed = allowed
        self.prefix = prefix
        self._known: dict[tuple[tuple[str, object], ...], BackendSettings] = {}

    def found(self, entries: Iterable[object], *, whole: bool = False) -> Found:
        """The backends of an answer."""
        backends: dict[str, BackendSettings] = {}
        names: set[str] = set()
        faults: list[str] = []
        for number, entry in enumerate(entries, 1):
            if number > BACKENDS_MAX:
                faults.append(f"there are more than {BACKENDS_MAX:,} entries: the rest is left out")
                break
            checked = self._checked(entry)
            if isinstance(checked, str):
                faults.append(f"entry {number} is left out: {checked}")
            elif checked.url in backends:
                continue  # an address may be in two lists
            elif checked.name in names:
                faults.append(f"entry {number} is left out: the name {checked.name} is taken")
            else:
                names.add(checked.name)
                backends[checked.url] = checked
        return Found(tuple(backends.values()), tuple(faults), whole)

    def _checked(self, entry: object) -> BackendSettings | str:
        """The backend that an entry describes, or why there is none."""
        if isinstance(entry, str):
            entry = {"url": entry}
        if not isinstance(entry, dict):
            return "it must be a mapping with a url, or a URL"
        try:
            key = tuple(entry.items())
            known = self._known.get(key)
        except TypeError:  # nonsense cannot be remembered
            return self._read(entry)
        if known is not None:
            return known
        checked = self._read(entry)
        if isinstance(checked, BackendSettings):
            if len(self._known) >= 2 * BACKENDS_MAX:
                self._known.clear()
            self._known[key] = checked
        return checked

    def _read(self, entry: dict[str, object]) -> BackendSettings | str:
        unknown = sorted(str(key)[:40] for key in entry.keys() - KEYS)
        if unknown:
            return f"it may have {', '.join(sorted(KEYS))}, not {unknown[0]!r}"
        url = entry.get("url")
        if not isinstance(url, str):
            return "it must have a url, which is text"
        try:
            backend = BackendSettings.model_validate({"name": name_of(url, self.prefix)} | entry)
        except ValidationError as refusal:
            path, problem = next(iter(complaints(refusal, lambda path: None)))
            return f"{'.'.join(map(str, path))} {problem}"
        urls = [backend.url, backend.gpu_metrics_url or ""]
        return next(filter(None, map(self._allowed.why_not, filter(None, urls))), backend)


def name_of(url: str, prefix: str = "") -> str:
    """A name for the server at this URL: its host and port, and a path if it has one."""
    spelt = _ODD.sub("-", url.partition("://")[2].rstrip("/")).strip("-._") or "backend"
    return bounded(prefix + spelt)


def bounded(name: str) -> str:
    """The name, or as much of it as a name may have, and a digest."""
    if len(name) <= NAME_CHARS_MAX:
        return name
    digest = sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: NAME_CHARS_MAX - 9]}-{digest}"


def entries_of(listed: object) -> Iterator[object]:
    """The entries of a list of backends, or of Prometheus's `file_sd` form. Raises ValueError."""
    if isinstance(listed, dict) and isinstance(listed.get("backends"), list):
        listed = listed["backends"]
    if not isinstance(listed, list):
        raise ValueError("it must be a list of backends")
    for each in listed:
        targets = each.get("targets") if isinstance(each, dict) else None
        if not isinstance(targets, list):
            yield each
            continue
        labels = each.get("labels")
        scheme = labels.get("__scheme__", "http") if isinstance(labels, dict) else "http"
        for target in targets:
            yield f"{scheme}://{target}" if isinstance(target, str) else target
