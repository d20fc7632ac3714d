"""Pools for nginx's upstreams, and for servers that `proxy_pass` names directly."""

import re
from collections.abc import Iterator
from typing import Final

from penstock.proxy.commands.imports.names import Names
from penstock.proxy.commands.imports.nginx_leftovers import tell_leftovers
from penstock.proxy.commands.imports.nginx_syntax import Directive
from penstock.proxy.commands.imports.nginx_values import (
    Target,
    address_of,
    default_port,
    number_of,
)
from penstock.proxy.commands.imports.part import Part

_READ: Final = frozenset(
    {"server", "least_conn", "least_time", "ip_hash", "hash", "random", "keepalive_timeout"}
)
# Whatever a server has besides: penstock's health has its own way to count.
_HEALTH: Final = frozenset(
    {"max_fails", "fail_timeout", "slow_start", "resolve", "route", "service"}
)
_ADDRESSES: Final = frozenset({"$remote_addr", "$binary_remote_addr", "$http_x_forwarded_for"})


class Pools:
    """The pools that the locations need, in the order in which they are needed."""

    def __init__(self, upstreams: dict[str, Directive]) -> None:
        self._upstreams = upstreams
        self._names = Names()
        self._backend_names = Names()
        self._found: dict[tuple[str, str], tuple[str, str | None]] = {}
        self.parts: list[Part] = []
        self.session_headers: list[str] = []
        """Headers that `hash` names: they tell sessions."""

    def of(self, target: Target, settings: Part) -> tuple[str, str | None] | None:
        """The names of the target's pool and of the pool of its backup servers. None: it has no
        server. `settings`: keys of the pool that stand in locations.
        """
        place = (target.scheme, target.server)
        if place not in self._found:
            found = self._write(target, settings)
            if found is None:
                return None
            self._found[place] = found
        return self._found[place]

    def _write(self, target: Target, settings: Part) -> tuple[str, str | None] | None:
        upstream = self._upstreams.get(target.server)
        if upstream is None:
            address = address_of(target.server, default_port(target.scheme))
            if address is None:
                return None
            line = Directive("server", (target.server,), 0)
            name = address.host if address.host[0].isalpha() else "backend"
            upstream = Directive("upstream", (name,), 0, (line,))
        name = self._names.new(upstream.words[0])
        main, backup = Part(), Part()
        main.put("name", name)
        tell_leftovers(main, upstream, _READ)
        policy = self._policy(upstream, main)
        for key, value in settings:
            if key is None:
                main.remark(str(value))
            else:
                main.put(key, value)
        usual, spare = self._backends(upstream, target.scheme, name, weighs=policy is not None)
        if not any(each.holds_keys for each in usual):
            usual, spare = spare, []  # nginx asks the backups then
        if not any(each.holds_keys for each in usual):
            return None
        main.put("backends", usual)
        self.parts.append(main)
        if not spare:
            return name, None
        backup.put("name", self._names.new(f"{name}-backup"))
        for key, value in settings:
            if key is not None:
                backup.put(key, value)
        backup.put("backends", spare)
        self.parts.append(backup)
        return name, str(backup["name"])

    def _policy(self, upstream: Directive, part: Part) -> str | None:
        """Write the policy. None: penstock's own, which measures speeds and takes no weights."""
        policy = None
        for each in upstream.block or ():
            if each.name == "least_conn":
                policy = "least_requests"
            elif each.name == "least_time":
                policy = "peak_ewma"
            elif each.name == "random":
                policy = "power_of_two" if "two" in each.words else "random"
            elif each.name in ("ip_hash", "hash"):
                policy = "session"
                self._read_hash(each, part)
        weights = [word for each in upstream.all("server") for word in each.words]
        if policy is None and [word for word in weights if word.startswith("weight=")]:
            policy = "round_robin"
        if policy is not None:
            part.put("policy", policy)
        elif len(upstream.all("server")) > 1:
            part.remark("nginx takes turns (`policy: round_robin`). The default counts tokens.")
        return policy

    def _read_hash(self, directive: Directive, part: Part) -> None:
        key = directive.words[0] if directive.words and directive.name == "hash" else "$remote_addr"
        header = re.fullmatch(r"\$http_([a-z0-9_]+)", key)
        if key in _ADDRESSES:
            why = "A session is told by `affinity`: a header, or a field of the body"
            part.lost(directive.line, f"{directive.name} by the client's address", why)
        elif header is not None:
            name = header[1].replace("_", "-")
            if name not in self.session_headers:
                self.session_headers.append(name)
        else:
            why = "`affinity` takes headers, and fields of the body"
            part.lost(directive.line, "the key of `hash`", why)

    def _backends(
        self, upstream: Directive, scheme: str, pool: str, *, weighs: bool
    ) -> tuple[list[Part], list[Part]]:
        """The servers that are asked first, and the others."""
        usual: list[Part] = []
        spare: list[Part] = []
        for each in upstream.all("server"):
            part = Part()
            self._write_server(part, each, scheme, pool, weighs=weighs)
            (spare if "backup" in each.words and part.holds_keys else usual).append(part)
        return usual, spare

    def _write_server(
        self, part: Part, server: Directive, scheme: str, pool: str, *, weighs: bool
    ) -> None:
        address = address_of(server.words[0], default_port(scheme)) if server.words else None
        if address is None:
            part.lost(server.line, "server", "A backend is a host and a port")
            return
        options = dict(_options(server))
        if "down" in options:
            part.lost(server.line, f"server {server.words[0]} down", "`penstock maint` does that")
            return
        dropped = [name for name in options if name in _HEALTH and server.line]
        if dropped:
            part.lost(server.line, ", ".join(dropped), "`health` says when a backend is ejected")
        part.put("name", self._backend_names.numbered(pool))
        part.put("url", address.url(scheme))
        weight = number_of(options.get("weight", "1"))
        most = number_of(options.get("max_conns", "0"))
        if weighs and weight > 1:
            part.put("weight", min(1000, weight))
        if most:
            part.put("max_requests", most)


def _options(server: Directive) -> Iterator[tuple[str, str]]:
    for word in server.words[1:]:
        name, _, value = word.partition("=")
        yield name, value
