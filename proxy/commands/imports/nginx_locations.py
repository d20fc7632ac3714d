"""Pools and routes for the locations of nginx's server: which path goes to which servers."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.conf.kinds import PATH_PATTERN, leads_to_some
from penstock.proxy.commands.imports.nginx_leftovers import WRITTEN_HEADERS, tell_leftovers
from penstock.proxy.commands.imports.nginx_syntax import (
    PORTS,
    Directive,
    Target,
    address_of,
    number_of,
    target_of,
)
from penstock.proxy.commands.imports.yaml_text import Names, Part, Variable

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


Scope = tuple[Directive, ...]
_NO_LOCATION: Final = "This path is not served."
_CHATS: Final = "/v1/chat/completions"
_KEY: Final = Variable("BACKEND_API_KEY")
_TLS_FILES: Final = {
    "ca_file": "proxy_ssl_trusted_certificate",
    "cert_file": "proxy_ssl_certificate",
    "key_file": "proxy_ssl_certificate_key",
}


class Location(NamedTuple):
    """A path as routes match paths, and the pool that answers for it. None: every path."""

    pattern: str | None
    pool: str
    backup: str | None

    def takes(self, pattern: str | None) -> bool:
        """Whether its route would take requests for this path."""
        if self.pattern is None or pattern is None:
            return self.pattern is None
        begin = self.pattern.removesuffix("*")
        return pattern == self.pattern or (begin != self.pattern and pattern.startswith(begin))

    @property
    def rank(self) -> tuple[int, int]:
        """nginx takes exact paths first, then the longest prefix."""
        pattern = self.pattern or "*"
        return int(pattern.endswith("*")), -len(pattern)


class Locations:
    """Reads the locations of one server. `outer`: the blocks around them, the innermost first."""

    def __init__(self, pools: Pools, outer: Scope) -> None:
        self.remarks = Part()
        self.scopes: list[Scope] = []
        """Each location that leads to a pool, with the blocks around it."""
        self._pools = pools
        self._outer = outer
        self._found: list[Location] = []
        self._by_model: list[Location] = []
        """Those whose path leads to another pool, too: requests go there by their model."""
        for block in outer[0].all("location"):
            found = self._location(block)
            if isinstance(found, str):
                self.remarks.lose(block.line, block.title, found)
                continue
            self.scopes.append((block, *outer))
            twins = [each for each in self._found if each.pattern == found.pattern]
            if not twins:
                self._found.append(found)
            elif twins != [found]:
                told = f"{block.title} (line {block.line}) has the path of another location now"
                self.remarks.remark(f"{told}: the model of a request tells its pool.")
                self._by_model.append(found)

    def _location(self, block: Directive) -> Location | str:
        """A location, or why it cannot be carried over."""
        passes = block.one("proxy_pass")
        if passes is None:
            return "It leads to no backend"
        if block.word in ("~", "~*") or block.words[:1] == ("@",):
            return "Routes match paths exactly, or by how they begin"
        target = target_of(passes.word)
        if target is None:
            return "A target is http://HOST:PORT or the name of an upstream, without variables"
        if not self._is_for_engines(target.path or _path_of(block), target.server):
            return "penstock serves the APIs of engines only: let nginx go on with this one"
        pool = self._pools.of(target, self._settings(block, target.scheme))
        if pool is None:
            return "Its target has no server"
        tell_leftovers(self.remarks, block)
        for nested in block.all("location"):
            self.remarks.lose(nested.line, nested.title, "Only locations of a server are read")
        path = _path_of(block)
        if target.path not in (None, path):
            told = f"Clients now ask for {target.path}, where nginx had {path}: paths pass as they"
            self.remarks.remark(f"{told} are. (line {block.line})")
            path = target.path or path
        pattern = path if block.word == "=" else None if path == "/" else f"{path}*"
        if pattern is not None and not re.fullmatch(PATH_PATTERN, pattern):
            return "Its path has characters that no route matches"
        return Location(pattern, *pool)

    def _is_for_engines(self, path: str, server: str) -> bool:
        """Whether clients may ask an engine there. Beside a location for chats that leads
        elsewhere, all other paths are for something else."""
        if path != "/":
            return leads_to_some(path)
        chats = [
            target_of(passes.word)
            for each in self._outer[0].all("location")
            if _path_of(each) != "/" and _CHATS.startswith(_path_of(each))
            if (passes := each.one("proxy_pass")) is not None
        ]
        return not chats or server in [each.server for each in chats if each is not None]

    def _settings(self, block: Directive, scheme: str) -> Part:
        """Keys of the pool that nginx has in locations, or around them."""
        settings, scope = Part(), (block, *self._outer)
        headers = next((found for each in scope if (found := each.all("proxy_set_header"))), [])
        for header in {each.word.lower(): each for each in headers}.values():
            _put_header(settings, header)
        if scheme == "https":
            files = {key: word_of(scope, name) for key, name in _TLS_FILES.items()}
            settings.put(tls=Part(**files) if any(files.values()) else None)
            if word_of(scope, "proxy_ssl_verify") != "on":
                settings.remark("nginx does not verify the backends' certificates. penstock does.")
        return settings

    def routes(self) -> list[Part]:
        """The routes: none where every path goes to one pool."""
        shared = [each.pattern for each in self._by_model]
        found = [each for each in self._found if not any(map(each.takes, shared))]
        for each in (*self._found, *self._by_model):
            if each.backup is not None and each not in found:
                told = f"Only a route would hold {each.backup} back until {each.pool} fails."
                self.remarks.remark(told)
        if len({each[1:] for each in found}) == 1 and not self._by_model:
            if found[0].backup is None:
                return []
            found = [found[0]._replace(pattern=None)]
        found.sort(key=lambda each: each.rank)
        names = Names()
        routes = [_route(each, names) for each in found]
        if found and found[-1].pattern is not None and not self._by_model:
            routes.append(Part(name=names.new("others"), refuse=_NO_LOCATION))
        return routes


def inherited(scope: Sequence[Directive], name: str) -> Directive | None:
    """The directive of this name in the innermost block that has it."""
    return next((found for each in scope if (found := each.one(name)) is not None), None)


def word_of(scope: Sequence[Directive], name: str) -> str | None:
    """The first word of that directive."""
    found = inherited(scope, name)
    return None if found is None else found.word


def _put_header(settings: Part, header: Directive) -> None:
    name, value = header.word.lower(), "".join(header.words[1:2])
    if name in WRITTEN_HEADERS or value in ("", f"$http_{name.replace('-', '_')}"):
        return
    if name == "authorization" and value.startswith("Bearer ") and "$" not in value:
        where = f"The key stands in nginx's file (line {header.line})"
        settings.remark(f"{where}: give it as {_KEY}.")
        settings.put(api_key=_KEY, forward_authorization="pool")
    else:
        settings.lose(header.line, f"proxy_set_header {name}", "`set.headers` of a route may do")


def _route(location: Location, names: Names) -> Part:
    fallback = Part(pool=location.backup, on=["no_backend", "errors"])
    return Part(
        name=names.new((location.pattern or location.pool).strip("/*")),
        match=None if location.pattern is None else {"path": location.pattern},
        to=[Part(pool=location.pool)],
        fallbacks=None if location.backup is None else [fallback],
    )


def _path_of(location: Directive) -> str:
    return location.words[-1] if location.words else "/"
