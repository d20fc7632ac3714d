"""Who may ask the admin port, and for what.

On an address other than loopback, only what probes, Prometheus and the page's own files need works
without a token. Of the metrics, what names tenants or costs is for who may ask the rest.
On loopback without a token every program may ask. Of web pages only ours may: others are known by
`Origin`, by `Sec-Fetch-Site`, or by a `Host` that is not loopback.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from http import HTTPStatus
from secrets import token_urlsafe
from typing import Final, NamedTuple

from aiohttp import web
from multidict import CIMultiDictProxy

from penstock.balancing.fair_table import FairTable
from penstock.conf.kinds import is_loopback
from penstock.proxy.admin.answers import error_answer
from penstock.proxy.data.plane import DataPlane


class Access(StrEnum):
    """What somebody may do. VIEW: read everything, and change nothing."""

    VIEW = "view"
    FULL = "full"


class Kind(StrEnum):
    """By what they are known."""

    TOKEN = "token"  # noqa: S105 - a word, as a header of each request
    PAGE = "page"  # a session of the page, which was got with a token
    LOCAL = "local"  # there is no token, and they are on this machine


class Asker(NamedTuple):
    """One who may ask. `address`: of their connection."""

    kind: Kind
    access: Access
    address: str


Headers = CIMultiDictProxy[str]
# A browser sends `Origin` with each POST and with what a page asks of another site. A page can
# change neither that nor `Host` and `Sec-Fetch-Site`. Programs send none of them but `Host`.
# A page of another origin can send the next one only if we allowed that before, and we never do.
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


LIFETIME_S: Final = 12 * 3_600.0
SESSIONS_MAX: Final = 64  # of each token
ID_BYTES: Final = 32


class Sessions:
    """Sessions of the page: got with a token once, and kept in memory only.

    A session counts while its token does, so a reload with another token ends all of the old one.
    Of tokens and ids only digests are kept. Each token has places of its own: who may only read
    pushes out nobody who may do more. In them an address pushes out its own sessions once it has
    its share.
    """

    def __init__(
        self, most: int = SESSIONS_MAX, new_id: Callable[[int], str] = token_urlsafe
    ) -> None:
        self._most = most
        self._new_id = new_id
        self._ends: dict[bytes, FairTable[float]] = {}  # by token: until when each counts
        self._places: dict[bytes, tuple[bytes, str]] = {}  # its token and owner

    def __len__(self) -> int:
        return len(self._places)

    def follow(self, tokens: Collection[bytes]) -> None:
        """Only these tokens count from now on."""
        gone = [each for each in self._ends if each not in tokens]
        if gone:
            self._ends = {each: ends for each, ends in self._ends.items() if each in tokens}
            places = self._places.items()
            self._places = {key: place for key, place in places if place[0] in tokens}

    def begin(self, token: bytes, owner: str, now_s: float) -> str:
        """A new session of who has shown this token. Returns its id."""
        ends = self._ends.get(token)
        if ends is None:
            ends = self._ends[token] = FairTable(self._most)
        session_id = self._new_id(ID_BYTES)
        key = digest_of(session_id)
        lost = ends.put(owner, key, now_s + LIFETIME_S)
        if isinstance(lost, bytes):
            del self._places[lost]
        self._places[key] = token, owner
        return session_id

    def token_of(self, session_id: str, now_s: float) -> bytes | None:
        """The token of a session. None if there is none with this id, or not any more."""
        key = digest_of(session_id)
        place = self._places.get(key)
        if place is None:
            return None
        until_s = self._ends[place[0]].find(place[1], key)
        if until_s is None or now_s >= until_s:
            self._remove(key)
            return None
        return place[0]

    def end(self, session_id: str) -> bool:
        """End a session. Returns whether there was one."""
        key = digest_of(session_id)
        if key not in self._places:
            return False
        self._remove(key)
        return True

    def _remove(self, key: bytes) -> None:
        token, owner = self._places.pop(key)
        self._ends[token].remove(owner, key)


def digest_of(secret: str) -> bytes:
    """What is kept of a secret, and compared: that takes the same time for any input."""
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ASKER: Final = web.RequestKey("asker", Asker)
_OPEN_PATHS: Final = frozenset({"/", "/livez", "/readyz", "/metrics", "/ui", "/ui/session"})
_OPEN_FILE: Final = re.compile(r"/ui/[a-zA-Z_]+\.[a-z.]+")
# What changes nothing, beside what is read with GET.
_READS: Final = frozenset({"/api/v1/explain"})
_READ_METHODS: Final = frozenset({"GET", "HEAD"})


class Refused(Exception):
    """A request that may not be made. The text is for its user."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Guard:
    """Compares what a request shows with the tokens of the configuration in use."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        # The address of the open port: a reload does not change it.
        self.local = is_loopback(plane.settings.admin.host)
        self.sessions = Sessions()

    @web.middleware
    async def authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let pass who may ask, and remember them as the request's ASKER."""
        path = request.path
        if path in _OPEN_PATHS or _OPEN_FILE.fullmatch(path):
            return await handler(request)
        try:
            asker = self.asker(request)
            reads = request.method in _READ_METHODS or path in _READS
            if asker.access is not Access.FULL and not reads:
                raise _forbidden(
                    "This token may only read (admin.view_token). A change needs the admin token."
                )
        except Refused as error:
            return error_answer(error.status, error.code, str(error))
        request[ASKER] = asker
        return await handler(request)

    def asker(self, request: web.Request) -> Asker:
        """Who asks. Raises Refused."""
        headers, address = request.headers, request.remote or ""
        tokens = self.tokens()
        if Access.FULL not in tokens.values():
            if not self.local:
                raise _unauthorized("On this address admin.token_file must be configured.")
            if not is_loopback(host_of(headers)) or not _of_this_machine(request.method, headers):
                raise _forbidden(
                    "Not for other web pages: configure admin.token_file, or ask localhost"
                    " directly."
                )
            return Asker(Kind.LOCAL, Access.FULL, address)
        if "authorization" in headers:
            access = tokens.get(_borne(headers, tokens))
            if access is None:
                raise _unauthorized(
                    "The admin token is missing or wrong: Authorization: Bearer TOKEN."
                )
            return Asker(Kind.TOKEN, access, address)
        token = self.sessions.token_of(cookie_of(request), self._plane.now())
        if token is None:
            raise _unauthorized("The admin token is missing or wrong: Authorization: Bearer TOKEN.")
        if not from_own_page(request.method, headers):
            raise _forbidden("A session of the page is for the page only. Programs show the token.")
        return Asker(Kind.PAGE, tokens[token], address)

    def tokens(self) -> dict[bytes, Access]:
        """What each token may do, by its digest. Sessions of any other one are over."""
        admin = self._plane.settings.admin
        found = {}
        for token, access in ((admin.view_token, Access.VIEW), (admin.token, Access.FULL)):
            if token is not None:
                found[digest_of(token.get_secret_value())] = access
        self.sessions.follow(found)
        return found

    def access_of(self, token: str) -> Access | None:
        """What a token may do that was given by itself. None: it is wrong."""
        tokens = self.tokens()
        return tokens.get(_equal(digest_of(token), tokens))

    def still(self, request: web.Request) -> bool:
        """Whether it would be let pass now, also one whose answer does not end."""
        try:
            self.asker(request)
        except Refused:
            return False
        return True

    def sees_names(self, request: web.Request) -> bool:
        """Whether metrics that name tenants and costs may be told: to who has the metrics token, or
        may ask the rest of the port."""
        metrics_token = self._plane.settings.admin.metrics_token
        if metrics_token is not None:
            digest = digest_of(metrics_token.get_secret_value())
            if _borne(request.headers, {digest}):
                return True
        return self.still(request)


def cookie_of(request: web.Request) -> str:
    """The session that a browser shows. Empty without one."""
    # `request.cookies` takes ten milliseconds for a line of nothing but semicolons.
    wanted = cookie_name(request) + "="
    for each in request.headers.get("cookie", "").split(";"):
        cookie = each.strip()
        if cookie.startswith(wanted):
            return cookie[len(wanted) :].strip('"')
    return ""


def cookie_name(request: web.Request) -> str:
    """Browsers keep cookies by host. With the port in its name, each proxy there has its own."""
    return f"penstock_{port_of(request.headers)}"


def _of_this_machine(method: str, headers: Headers) -> bool:
    return from_program(headers) or from_own_page(method, headers)


def _borne(headers: Headers, tokens: Iterable[bytes]) -> bytes:
    """The digest of the token that a request bears, if it is one of these. Else nothing."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    found = _equal(digest_of(given), tokens)
    return found if scheme.lower() == "bearer" else b""


def _equal(digest: bytes, tokens: Iterable[bytes]) -> bytes:
    """Which of these digests it equals. Empty: none. It takes the same time for any digest."""
    found = b""
    for each in tokens:
        if hmac.compare_digest(each, digest):
            found = each
    return found


def _unauthorized(message: str) -> Refused:
    return Refused(HTTPStatus.UNAUTHORIZED, "unauthorized", message)


def _forbidden(message: str) -> Refused:
    return Refused(HTTPStatus.FORBIDDEN, "forbidden", message)
