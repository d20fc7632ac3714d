"""Where nginx's server listens, and its certificate."""

from collections.abc import Sequence
from typing import Final

from penstock.proxy.commands.imports.nginx_syntax import Directive
from penstock.proxy.commands.imports.nginx_values import Address, address_of
from penstock.proxy.commands.imports.part import Part

_PORT: Final = 80
_NEEDLESS: Final = frozenset({"ssl", "default_server", "reuseport", "deferred", "ipv6only=on"})


def put_listen(part: Part, server: Directive, origins: Sequence[str] = ()) -> None:
    """Write `listen`, and tell what of it cannot be. `origins`: of pages that may ask."""
    listens = server.all("listen")
    addresses: list[tuple[Directive, Address]] = []
    for each in listens:
        address = _address(each)
        if address is None:
            part.lost(each.line, "listen", "penstock listens on an address and a port")
            continue
        if addresses and address.port != addresses[0][1].port:
            part.lost(each.line, f"listen {address.port}", "penstock has one data port")
            continue
        addresses.append((each, address))
        for word in each.words[1:]:
            if word not in _NEEDLESS:
                part.lost(each.line, f"listen … {word}")
    port = addresses[0][1].port if addresses else _PORT
    hosts = [address.host for _, address in addresses]
    listen = Part()
    own = next((host for host in hosts if ":" in host), hosts[0] if hosts else None)
    if own is not None and own != "0.0.0.0":  # noqa: S104 - compared with, not listened on
        listen.put("host", own)
    listen.put("port", port)
    if origins:
        listen.put("cors_origins", list(origins))
    if any("ssl" in each.words for each, _ in addresses) or _says(server, "ssl", "on"):
        _put_tls(listen, server)
    part.put("listen", listen)


def _address(listen: Directive) -> Address | None:
    if not listen.words:
        return None
    text = listen.words[0].replace("*", "0.0.0.0", 1)  # noqa: S104 - nginx's own star
    if text.isdigit():
        text = f"0.0.0.0:{text}"
    return address_of(text, _PORT)


def _put_tls(listen: Part, server: Directive) -> None:
    tls = Part()
    for key, name in (("cert_file", "ssl_certificate"), ("key_file", "ssl_certificate_key")):
        found = server.one(name)
        if found is None:
            listen.remark(f"{name} is missing in nginx's server: tls needs {key}.")
            return
        tls.put(key, found.words[0])
    authority = server.one("ssl_client_certificate")
    if authority is not None and _says(server, "ssl_verify_client", "on"):
        tls.put("client_ca_file", authority.words[0])
    if not str(tls["cert_file"]).startswith("/"):
        listen.remark("Relative paths begin at the folder of this file.")
    listen.put("tls", tls)


def _says(block: Directive, name: str, value: str) -> bool:
    found = block.one(name)
    return found is not None and found.words[0] == value
