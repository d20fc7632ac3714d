"""Which page of a browser a request comes from.

A browser sends `Origin` with each POST and with what a page asks of another site. A page cannot
change it, nor `Host` and `Sec-Fetch-Site`. Programs send none of them but `Host`.
"""

from collections.abc import Mapping
from typing import Final

from multidict import CIMultiDictProxy

Headers = CIMultiDictProxy[str]
# A page of another origin can send it only if we allowed that before, and we never do.
OURS: Final = "x-penstock-page"
_CHANGES: Final = frozenset({"POST", "DELETE"})
# Newer browsers say whether a page of this origin asks, or its user ("none").
_OWN_SITES: Final = frozenset({"same-origin", "none"})


def host_of(headers: Mapping[str, str]) -> str:
    """The host name in `Host`, without the port."""
    host = headers.get("host", "")
    name, bracket, port = host.rpartition("]")
    if bracket:
        return name[1:] if host.startswith("[") and port[:1] in ("", ":") else ""
    return host.partition(":")[0]


def port_of(headers: Mapping[str, str]) -> str:
    """The port in `Host`, as the browser sees it. Empty if it is the usual one."""
    port = headers.get("host", "").rpartition("]")[2].rpartition(":")[2]
    return port if port.isascii() and port.isdigit() else ""


def from_program(headers: Headers) -> bool:
    """Whether no page has asked, as far as anybody can tell."""
    return "origin" not in headers and headers.get("sec-fetch-site", "none") == "none"


def from_own_page(method: str, headers: Headers) -> bool:
    """Whether our own page has asked: a read without `Origin`, or a change by its script."""
    if headers.get("sec-fetch-site", "same-origin") not in _OWN_SITES:
        return False
    if method not in _CHANGES:
        return "origin" not in headers
    # TLS may end before us, so both schemes are ours.
    host = headers.get("host", "")
    own = (f"http://{host}", f"https://{host}")
    origins = headers.getall("origin", [])
    return len(origins) == 1 and origins[0] in own and headers.get(OURS) == "1"
