"""`penstock import nginx`: nginx's configuration as one of penstock's."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from penstock.conf.issues import ConfigError, Issue
from penstock.conf.kinds import ORIGIN
from penstock.proxy.commands.imports.nginx_leftovers import tell_leftovers
from penstock.proxy.commands.imports.nginx_listen import put_listen
from penstock.proxy.commands.imports.nginx_locations import Locations, inherited
from penstock.proxy.commands.imports.nginx_pools import Pools
from penstock.proxy.commands.imports.nginx_syntax import Directive, read_nginx
from penstock.proxy.commands.imports.nginx_values import bytes_of, number_of, seconds_of
from penstock.proxy.commands.imports.part import Part

Scopes = Sequence[tuple[Directive, ...]]
# The keys of `timeouts` that a directive is about.
_TIMES: Final = {
    "proxy_connect_timeout": ("connect_s",),
    "proxy_read_timeout": ("first_byte_s", "idle_s"),
    "client_header_timeout": ("client_head_s",),
    "client_body_timeout": ("client_body_s",),
    "keepalive_timeout": ("client_idle_s",),
    "send_timeout": ("client_stall_s",),
}
_TIME_S_MAX: Final = 86_400.0
_BODY_BYTES_MIN, _BODY_BYTES_MAX = 1_024, 2**32
_BODIES_BYTES: Final = 2**30
_CONNECTIONS_MAX: Final = 1_000_000
_READ: Final = frozenset({"upstream", "server", "client_max_body_size", *_TIMES})
_READ_IN_SERVER: Final = (
    _READ
    | {"listen", "location", "proxy_set_header", "ssl"}
    | {
        "ssl_certificate",
        "ssl_certificate_key",
        "ssl_client_certificate",
        "ssl_verify_client",
        "proxy_ssl_trusted_certificate",
        "proxy_ssl_certificate",
        "proxy_ssl_certificate_key",
        "proxy_ssl_verify",
    }
)


def nginx(text: str, file: str) -> Part:
    """The configuration. Raises ConfigError with all that is wrong with the file."""
    root = read_nginx(text, file)
    (http,) = root.all("http")[:1] or [root]
    servers = [each for each in http.all("server") if _proxies(each)]
    if not servers:
        problem = "has no server with a location that has proxy_pass: penstock would serve nothing"
        raise ConfigError([Issue(f"{file}:{http.line}", (), problem)])
    server = servers[0]
    pools = Pools({each.words[0]: each for each in http.all("upstream") if each.words})
    locations = Locations(pools, (server, http))
    locations.read()
    if not pools.parts:
        problem = "no location of this server leads to a backend that penstock could serve"
        raise ConfigError([Issue(f"{file}:{server.line}", (), problem)])
    part = Part()
    if http is not root:
        tell_leftovers(part, root, ())
    tell_leftovers(part, http, _READ | {"location"})
    scopes = list(locations.scopes)
    put_listen(part, server, _origins(scopes))
    tell_leftovers(part, server, _READ_IN_SERVER)
    for other in http.all("server"):
        if other is not server:
            part.lost(other.line, "server", _why_not(other))
    part.put("pools", pools.parts)
    part.put("routes", [locations.remarks, *locations.routes()])
    if pools.session_headers:
        part.put("affinity", {"headers": pools.session_headers})
    part.put("timeouts", _timeouts(scopes))
    part.put("limits", _limits(scopes, root))
    return part


def _proxies(server: Directive) -> bool:
    return any(each.one("proxy_pass") is not None for each in server.all("location"))


def _why_not(server: Directive) -> str:
    if _proxies(server):
        return "penstock has one data port: import this server by itself, for another penstock"
    return "It leads to no backend"


def _origins(scopes: Scopes) -> list[str]:
    """The pages that browsers may ask from. A variable stands for any page."""
    named = [
        each.words[1]
        for scope in scopes
        for block in scope
        for each in block.all("add_header")
        if len(each.words) > 1 and each.words[0].lower() == "access-control-allow-origin"
    ]
    origins = list(dict.fromkeys("*" if "$" in name else name.strip("\"'") for name in named))
    return ["*"] if "*" in origins else [each for each in origins if re.fullmatch(ORIGIN, each)]


def _timeouts(scopes: Scopes) -> Part:
    """The times of the locations. Where they differ the longest counts."""
    part = Part()
    for name, keys in _TIMES.items():
        times_s = _values(part, scopes, name, seconds_of)
        if times_s:
            for key in keys:
                part.put(key, min(max(max(times_s), 0.001), _TIME_S_MAX))
    return part


def _limits(scopes: Scopes, root: Directive) -> Part:
    part = Part()
    sizes = _values(part, scopes, "client_max_body_size", bytes_of)
    if 0 in sizes:
        part.remark("nginx has no limit for bodies (client_max_body_size 0). penstock's is 32 MiB.")
    elif sizes:
        body_bytes = min(max(*sizes, _BODY_BYTES_MIN), _BODY_BYTES_MAX)
        part.put("body_bytes", _size(int(body_bytes)))
        if body_bytes > _BODIES_BYTES:
            part.put("bodies_bytes", _size(int(body_bytes)))
    for events in root.all("events"):
        found = events.one("worker_connections")
        most = number_of(found.words[0]) if found is not None else 0
        if most:
            part.put("connections", min(most, _CONNECTIONS_MAX))
    return part


def _values(
    part: Part, scopes: Scopes, name: str, read: Callable[[str], float | None]
) -> list[float]:
    """What the directive says, once for each place where it stands."""
    found = {each.line: each for scope in scopes if (each := inherited(scope, name)) is not None}
    values = []
    for each in found.values():
        value = read(each.words[0])
        if value is None:
            part.lost(each.line, name, "Its value is not understood")
        else:
            values.append(value)
    if len(set(values)) > 1:
        part.remark(f"Locations differ in {name}: the largest counts for all.")
    return [] if name.endswith("timeout") and max(values, default=0) <= 0 else values


def _size(size_bytes: int) -> int | str:
    """A size as people write it."""
    mebibyte = 2**20
    return f"{size_bytes // mebibyte}MiB" if size_bytes % mebibyte == 0 else size_bytes
