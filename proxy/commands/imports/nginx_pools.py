"""Pools for nginx's upstreams, and for servers that `proxy_pass` names directly."""

import re
from typing import Final

from penstock.proxy.commands.imports.nginx_leftovers import tell_leftovers
from penstock.proxy.commands.imports.nginx_syntax import (
    PORTS,
    Directive,
    Target,
    address_of,
    number_of,
)
from penstock.proxy.commands.imports.yaml_text import Names, Part

_POLICIES: Final = {
    "least_conn": "least_requests",
    "least_time": "peak_ewma",
    "random": "random",
    "ip_hash": "session",
    "hash": "session",
}
# What a server has besides: penstock's health has its own way to count.
_HEALTH: Final = frozenset(
    {"max_fails", "fail_timeout", "slow_start", "resolve", "route", "service"}
)
_ADDRESSES: Final = frozenset({"$remote_addr", "$binary_remote_addr", "$http_x_forwarded_for"})
# The names of a pool and of the pool of its backup servers.
Found = tuple[str, str | None]


class Pools:
    """The pools that the locations need, in the order in which they are needed."""

    def __init__(self, upstreams: dict[str, Directive]) -> None:
        self._upstreams = upstreams
        self._names = Names()
        self._backend_names = Names()
        self._found: dict[tuple[str, str], Found | None] = {}
        self.parts: list[Part] = []
        self.session_headers: list[str] = []
        """Headers that `hash` names: they tell sessions."""

    def of(self, target: Target, settings: Part) -> Found | None:
        """The pool of a target. None: it has no server. `settings`: keys of the pool that stand in
        locations.
        """
        place = (target.scheme, target.server)
        if place not in self._found:
            self._found[place] = self._write(target, settings)
        return self._found[place]

    def _write(self, target: Target, settings: Part) -> Found | None:
        upstream = self._upstreams.get(target.server)
        if upstream is None:
            address = address_of(target.server, PORTS[target.scheme])
            if address is None:
                return None
            name = address.host if address.host[0].isalpha() else "backend"
            server = Directive("server", (target.server,), 0)
            upstream = Directive("upstream", (name,), 0, [server])
        name = self._names.new(upstream.word)
        main = Part(name=name)
        tell_leftovers(main, upstream)
        weighs = self._put_policy(upstream, main)
        usual: list[Part] = []
        spare: list[Part] = []
        for each in upstream.all("server"):
            part = self._server(each, target.scheme, name, weighs=weighs)
            (spare if "backup" in each.words and part.holds_keys else usual).append(part)
        if not any(each.holds_keys for each in usual):
            usual, spare = spare, []  # nginx asks the backups then
        if not any(each.holds_keys for each in usual):
            return None
        main.lines += settings.lines
        main.put(backends=usual)
        self.parts.append(main)
        if not spare:
            return name, None
        backup = Part(name=self._names.new(f"{name}-backup"))
        backup.lines += [each for each in settings.lines if each[0] is not None]
        backup.put(backends=spare)
        self.parts.append(backup)
        return name, str(backup.lines[0][1])

    def _put_policy(self, upstream: Directive, part: Part) -> bool:
        """Whether one is written. penstock's own measures speeds and takes no weights."""
        policy = None
        for each in upstream.block:
            policy = _POLICIES.get(each.name, policy)
            if each.name == "random" and "two" in each.words:
                policy = "power_of_two"
            if each.name in ("ip_hash", "hash"):
                self._read_hash(each, part)
        servers = upstream.all("server")
        words = [word for each in servers for word in each.words]
        if policy is None and any(word.startswith("weight=") for word in words):
            policy = "round_robin"
        if policy is None and len(servers) > 1:
            part.remark("nginx takes turns (`policy: round_robin`). The default counts tokens.")
        part.put(policy=policy)
        return policy is not None

    def _read_hash(self, directive: Directive, part: Part) -> None:
        key = directive.word if directive.words and directive.name == "hash" else "$remote_addr"
        header = re.fullmatch(r"\$http_([a-z0-9_]+)", key)
        if key in _ADDRESSES:
            why = "A session is told by `affinity`: a header, or a field of the body"
            part.lose(directive.line, f"{directive.name} by the client's address", why)
        elif header is None:
            why = "`affinity` takes headers, and fields of the body"
            part.lose(directive.line, "the key of `hash`", why)
        elif (name := header[1].replace("_", "-")) not in self.session_headers:
            self.session_headers.append(name)

    def _server(self, server: Directive, scheme: str, pool: str, *, weighs: bool) -> Part:
        part, options = Part(), dict(word.partition("=")[::2] for word in server.words[1:])
        address = address_of(server.word, PORTS[scheme])
        if address is None:
            part.lose(server.line, "server", "A backend is a host and a port")
            return part
        if "down" in options:
            part.lose(server.line, f"server {server.word} down", "`penstock maint` does that")
            return part
        if dropped := [name for name in options if name in _HEALTH]:
            part.lose(server.line, ", ".join(dropped), "`health` says when a backend is ejected")
        weight = number_of(options.get("weight", "1")) if weighs else 1
        part.put(
            name=self._backend_names.numbered(pool),
            url=address.url(scheme),
            weight=min(1000, weight) if weight > 1 else None,
            max_requests=number_of(options.get("max_conns", "0")) or None,
        )
        return part
