"""`penstock import nginx`: nginx's configuration as one of penstock's."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from penstock.conf.kinds import ORIGIN
from penstock.proxy.commands.imports.nginx_leftovers import tell_leftovers
from penstock.proxy.commands.imports.nginx_locations import (
    Locations,
    Pools,
    Scope,
    inherited,
    word_of,
)
from penstock.proxy.commands.imports.nginx_syntax import (
    Address,
    Directive,
    address_of,
    bytes_of,
    number_of,
    read_nginx,
    refusal,
    seconds_of,
)
from penstock.proxy.commands.imports.yaml_text import Part

_PORT: Final = 80
_TIME_S_MAX: Final = 86_400.0
_BODY_BYTES_MIN, _BODY_BYTES_MAX = 1_024, 2**32
_BODIES_BYTES: Final = 2**30
_CONNECTIONS_MAX: Final = 1_000_000
# The keys of `timeouts` that a directive is about.
_TIMES: Final = {
    "proxy_connect_timeout": ("connect_s",),
    "proxy_read_timeout": ("first_byte_s", "idle_s"),
    "client_header_timeout": ("client_head_s",),
    "client_body_timeout": ("client_body_s",),
    "keepalive_timeout": ("client_idle_s",),
    "send_timeout": ("client_stall_s",),
}
_LISTEN_WORDS: Final = frozenset({"ssl", "default_server", "reuseport", "deferred", "ipv6only=on"})


def nginx(text: str, file: str) -> Part:
    """The configuration. Raises ConfigError with all that is wrong with the file."""
    root = read_nginx(text, file)
    (http,) = root.all("http")[:1] or [root]
    server = next(filter(_proxies, http.all("server")), None)
    if server is None:
        problem = "has no server with a location that has proxy_pass: penstock would serve nothing"
        raise refusal(file, http.line, problem)
    pools = Pools({each.word: each for each in http.all("upstream") if each.words})
    locations = Locations(pools, (server, http))
    if not pools.parts:
        problem = "no location of this server leads to a backend that penstock could serve"
        raise refusal(file, server.line, problem)
    part, scopes = Part(), locations.scopes
    for block in (root, http) if http is not root else (root,):
        tell_leftovers(part, block)
    _put_listen(part, (server, http), _origins(scopes))
    tell_leftovers(part, server)
    for other in http.all("server"):
        if other is not server:
            why = "penstock has one data port: import this server by itself, for another penstock"
            part.lose(other.line, "server", why if _proxies(other) else "It leads to no backend")
    routes = locations.routes()
    part.put(
        pools=pools.parts,
        routes=[locations.remarks, *routes],
        affinity={"headers": pools.session_headers} if pools.session_headers else None,
        timeouts=_timeouts(scopes),
        limits=_limits(scopes, root),
    )
    return part


def _proxies(server: Directive) -> bool:
    return any(each.one("proxy_pass") is not None for each in server.all("location"))


def _put_listen(part: Part, scope: Scope, origins: Sequence[str]) -> None:
    """Write `listen`, and tell what of it cannot be. `origins`: of pages that may ask."""
    addresses: list[Address] = []
    has_tls = word_of(scope, "ssl") == "on"
    for each in scope[0].all("listen"):
        # nginx's own star, and a port alone, stand for every address.
        text = re.sub(r"^(\d+)$", r"0.0.0.0:\1", each.word.replace("*", "0.0.0.0", 1))  # noqa: S104
        address = address_of(text, _PORT)
        if address is None:
            part.lose(each.line, "listen", "penstock listens on an address and a port")
        elif addresses and address.port != addresses[0].port:
            part.lose(each.line, f"listen {address.port}", "penstock has one data port")
        else:
            addresses.append(address)
            has_tls = has_tls or "ssl" in each.words
            for word in each.words[1:]:
                if word not in _LISTEN_WORDS:
                    part.lose(each.line, f"listen … {word}")
    hosts = [each.host for each in addresses]
    host = next((each for each in hosts if ":" in each), hosts[0] if hosts else None)
    listen = Part(
        host=host if host != "0.0.0.0" else None,  # noqa: S104 - compared with, not listened on
        port=addresses[0].port if addresses else _PORT,
        cors_origins=origins or None,
    )
    if has_tls:
        _put_tls(listen, scope)
    part.put(listen=listen)


def _put_tls(listen: Part, scope: Scope) -> None:
    files = {}
    for key, name in (("cert_file", "ssl_certificate"), ("key_file", "ssl_certificate_key")):
        files[key] = word_of(scope, name)
        if files[key] is None:
            listen.remark(f"{name} is missing in nginx's server: tls needs {key}.")
            return
    if word_of(scope, "ssl_verify_client") == "on":
        files["client_ca_file"] = word_of(scope, "ssl_client_certificate")
    if not str(files["cert_file"]).startswith("/"):
        listen.remark("Relative paths begin at the folder of this file.")
    listen.put(tls=Part(**files))


def _origins(scopes: Sequence[Scope]) -> list[str]:
    """The pages that browsers may ask from. A variable stands for any page."""
    named = [
        each.words[1]
        for scope in scopes
        for block in scope
        for each in block.all("add_header")
        if len(each.words) > 1 and each.word.lower() == "access-control-allow-origin"
    ]
    origins = list(dict.fromkeys("*" if "$" in name else name.strip("\"'") for name in named))
    return ["*"] if "*" in origins else [each for each in origins if re.fullmatch(ORIGIN, each)]


def _timeouts(scopes: Sequence[Scope]) -> Part:
    """The times of the locations. Where they differ the longest counts."""
    part = Part()
    for name, keys in _TIMES.items():
        longest_s = max(_values(part, scopes, name, seconds_of), default=0)
        if longest_s > 0:
            part.put(**dict.fromkeys(keys, min(max(longest_s, 0.001), _TIME_S_MAX)))
    return part


def _limits(scopes: Sequence[Scope], root: Directive) -> Part:
    part = Part()
    sizes = _values(part, scopes, "client_max_body_size", bytes_of)
    if 0 in sizes:
        part.remark("nginx has no limit for bodies (client_max_body_size 0). penstock's is 32 MiB.")
    elif sizes:
        body_bytes = int(min(max(*sizes, _BODY_BYTES_MIN), _BODY_BYTES_MAX))
        size = f"{body_bytes >> 20}MiB" if body_bytes % 2**20 == 0 else body_bytes
        part.put(body_bytes=size, bodies_bytes=size if body_bytes > _BODIES_BYTES else None)
    most = number_of(word_of(root.all("events"), "worker_connections") or "")
    part.put(connections=min(most, _CONNECTIONS_MAX) or None)
    return part


def _values(
    part: Part, scopes: Sequence[Scope], name: str, read: Callable[[str], float | None]
) -> list[float]:
    """What the directive says, once for each place where it stands."""
    found = {each.line: each for scope in scopes if (each := inherited(scope, name)) is not None}
    values = []
    for each in found.values():
        value = read(each.word)
        if value is None:
            part.lose(each.line, name, "Its value is not understood")
        else:
            values.append(value)
    if len(set(values)) > 1:
        part.remark(f"Locations differ in {name}: the largest counts for all.")
    return values
