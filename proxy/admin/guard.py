"""Who may ask the admin port, and for what.

On an address other than loopback, only what probes, Prometheus and the page's own files need works
without a token. Of the metrics, what names tenants or costs is for who may ask the rest.
On loopback without a token every program may ask. Of web pages only ours may: others are known by
`Origin`, by `Sec-Fetch-Site`, or by a `Host` that is not loopback.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from penstock.conf.kinds import is_loopback
from penstock.proxy.admin.asker import Access, Asker, Kind
from penstock.proxy.admin.json_answers import error_answer
from penstock.proxy.admin.origins import Headers, from_own_page, from_program, host_of, port_of
from penstock.proxy.admin.page.sessions import Sessions, digest_of
from penstock.proxy.data.plane import DataPlane

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
