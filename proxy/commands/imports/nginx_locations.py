"""Routes for the locations of nginx's server: which path goes to which pool."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.conf.kinds import PATH_PATTERN
from penstock.conf.served_paths import leads_to_some
from penstock.proxy.commands.imports.names import Names
from penstock.proxy.commands.imports.nginx_leftovers import WRITTEN_HEADERS, tell_leftovers
from penstock.proxy.commands.imports.nginx_pools import Pools
from penstock.proxy.commands.imports.nginx_syntax import Directive
from penstock.proxy.commands.imports.nginx_values import Target, target_of
from penstock.proxy.commands.imports.part import Part, Variable

_READ: Final = frozenset(
    {"proxy_pass", "proxy_connect_timeout", "proxy_read_timeout", "client_max_body_size"}
    | {"client_body_timeout", "send_timeout", "keepalive_timeout", "location", "proxy_set_header"}
    | {"proxy_ssl_trusted_certificate", "proxy_ssl_certificate", "proxy_ssl_certificate_key"}
    | {"proxy_ssl_verify"}
)
_NO_LOCATION: Final = "This path is not served."
_CHATS: Final = "/v1/chat/completions"
_KEY: Final = Variable("BACKEND_API_KEY")


@dataclass(frozen=True)
class Location:
    """A path, and the pool that answers for it."""

    pattern: str | None
    """As routes match paths. None: every path."""
    pool: str
    backup: str | None

    def takes(self, pattern: str | None) -> bool:
        """Whether its route would take requests for this path."""
        if self.pattern is None or pattern is None:
            return self.pattern is None
        return pattern == self.pattern or (
            self.pattern.endswith("*") and pattern.startswith(self.pattern[:-1])
        )

    @property
    def rank(self) -> tuple[int, int]:
        """nginx takes exact paths first, then the longest prefix."""
        if self.pattern is None:
            return 2, 0
        return int(self.pattern.endswith("*")), -len(self.pattern)


class Locations:
    """Reads the locations of one server."""

    def __init__(self, pools: Pools, outer: Sequence[Directive]) -> None:
        """`outer`: the blocks around a location, the innermost first."""
        self._pools = pools
        self._outer = outer
        self.remarks = Part()
        self._found: list[Location] = []
        self._by_model: list[Location] = []
        """Those whose path leads to another pool, too: requests go there by their model."""
        self.blocks: list[Directive] = []
        """Those that lead to a pool."""

    def read(self) -> None:
        """Read all of them. The pools know then what they need, too."""
        for location in self._outer[0].all("location"):
            found = self._location(location)
            if found is None:
                continue
            self.blocks.append(location)
            twins = [each for each in self._found if each.pattern == found.pattern]
            if not twins:
                self._found.append(found)
            elif twins != [found]:
                told = f"{_title(location)} (line {location.line}) has the path of another location"
                self.remarks.remark(f"{told} now: the model of a request tells its pool.")
                self._by_model.append(found)

    def _location(self, location: Directive) -> Location | None:
        """None: it cannot be carried over, and why has been told."""
        remarks, title = self.remarks, _title(location)
        passes = location.one("proxy_pass")
        if passes is None:
            remarks.lost(location.line, title, "It leads to no backend")
            return None
        if location.words[:1] in (("~",), ("~*",)) or location.words[:1] == ("@",):
            remarks.lost(location.line, title, "Routes match paths exactly, or by how they begin")
            return None
        target = target_of(passes.words[0])
        if target is None:
            why = "A target is http://HOST:PORT or the name of an upstream, without variables"
            remarks.lost(passes.line, f"{title}: proxy_pass", why)
            return None
        if not self._is_for_engines(location, target):
            why = "penstock serves the APIs of engines only: let nginx go on with this one"
            remarks.lost(location.line, title, why)
            return None
        settings = Part()
        self._put_settings(settings, location, target.scheme)
        pool = self._pools.of(target, settings)
        if pool is None:
            remarks.lost(passes.line, f"{title}: proxy_pass", "It has no server")
            return None
        tell_leftovers(remarks, location, _READ)
        for nested in location.all("location"):
            remarks.lost(nested.line, _title(nested), "Only locations of a server are read")
        pattern = self._pattern(location, target.path)
        if pattern is not None and not re.fullmatch(PATH_PATTERN, pattern):
            remarks.lost(location.line, title, "Its path has characters that no route matches")
            return None
        return Location(pattern, *pool)

    def _is_for_engines(self, location: Directive, target: Target) -> bool:
        """Whether clients may ask an engine there. Beside a location for chats that leads
        elsewhere, all other paths are for something else."""
        path = target.path or _path_of(location)
        if path != "/":
            return leads_to_some(path)
        chats = [
            passes.words[0]
            for each in self._outer[0].all("location")
            if _path_of(each) != "/" and _CHATS.startswith(_path_of(each))
            if (passes := each.one("proxy_pass")) is not None
        ]
        return not chats or target.server in [
            found.server for each in chats if (found := target_of(each)) is not None
        ]

    def _pattern(self, location: Directive, path: str | None) -> str | None:
        """The path as clients ask penstock for it."""
        own = _path_of(location)
        if path is not None and path != own:
            told = f"Clients now ask for {path}, where nginx had {own}: paths pass as they are."
            self.remarks.remark(f"{told} (line {location.line})")
            own = path
        if location.words[:1] == ("=",):
            return own
        return None if own == "/" else f"{own}*"

    def _put_settings(self, settings: Part, location: Directive, scheme: str) -> None:
        """Keys of the pool that nginx has in locations, or around them."""
        scopes = (location, *self._outer)
        headers = [each.all("proxy_set_header") for each in scopes]
        inner = next((found for found in headers if found), [])
        for header in {" ".join(each.words[:1]).lower(): each for each in inner}.values():
            self._put_header(settings, header)
        if scheme != "https":
            return
        tls = Part()
        for key, name in (
            ("ca_file", "proxy_ssl_trusted_certificate"),
            ("cert_file", "proxy_ssl_certificate"),
            ("key_file", "proxy_ssl_certificate_key"),
        ):
            found = inherited(scopes, name)
            tls.put_given(**{key: found.words[0] if found is not None else None})
        if tls.holds_keys:
            settings.put("tls", tls)
        verify = inherited(scopes, "proxy_ssl_verify")
        if verify is None or verify.words[0] != "on":
            settings.remark("nginx does not verify the backends' certificates. penstock does.")

    def _put_header(self, settings: Part, header: Directive) -> None:
        name = header.words[0].lower() if header.words else ""
        value = header.words[1] if len(header.words) > 1 else ""
        if name in WRITTEN_HEADERS or not value or value == f"$http_{name.replace('-', '_')}":
            return
        if name == "authorization" and value.startswith("Bearer ") and "$" not in value:
            line = header.line
            settings.remark(f"The key stands in nginx's file (line {line}): give it as {_KEY}.")
            settings.put("api_key", _KEY)
            settings.put("forward_authorization", "pool")
        else:
            settings.lost(
                header.line, f"proxy_set_header {name}", "`set.headers` of a route may do"
            )

    def routes(self) -> list[Part]:
        """The routes: none where every path goes to one pool."""
        shared = [each.pattern for each in self._by_model]
        found = [each for each in self._found if not any(map(each.takes, shared))]
        for each in (*self._found, *self._by_model):
            if each.backup is not None and each not in found:
                self.remarks.remark(
                    f"Only a route would hold {each.backup} back until {each.pool} fails."
                )
        pools = {(each.pool, each.backup) for each in found}
        if len(pools) == 1 and not self._by_model:
            if found[0].backup is None:
                return []
            found = [Location(None, found[0].pool, found[0].backup)]
        found.sort(key=lambda each: each.rank)
        names = Names()
        routes = [_route(each, names) for each in found]
        if found and found[-1].pattern is not None and not self._by_model:
            others = Part()
            others.put("name", names.new("others"))
            others.put("refuse", _NO_LOCATION)
            routes.append(others)
        return routes

    @property
    def scopes(self) -> Iterator[tuple[Directive, ...]]:
        """Each location that leads to a pool, with the blocks around it."""
        for each in self.blocks:
            yield (each, *self._outer)


def _route(location: Location, names: Names) -> Part:
    part, target = Part(), Part()
    part.put("name", names.new((location.pattern or location.pool).strip("/*")))
    if location.pattern is not None:
        part.put("match", {"path": location.pattern})
    target.put("pool", location.pool)
    part.put("to", [target])
    if location.backup is not None:
        backup = Part()
        backup.put("pool", location.backup)
        backup.put("on", ["no_backend", "errors"])
        part.put("fallbacks", [backup])
    return part


def inherited(scopes: Sequence[Directive], name: str) -> Directive | None:
    """The directive of this name in the innermost block that has it."""
    return next((found for each in scopes if (found := each.one(name)) is not None), None)


def _path_of(location: Directive) -> str:
    return location.words[-1] if location.words else "/"


def _title(location: Directive) -> str:
    return " ".join(("location", *location.words))
