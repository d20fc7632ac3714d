"""`/ui/session`: a token is shown once, and the page asks with a cookie from then on.

The cookie can be neither read by scripts nor sent by pages of other sites. It is no `Secure`
cookie: whether TLS ends before this port is not known here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from penstock.proxy.admin.asker import Access
from penstock.proxy.admin.guard import Guard, Refused, cookie_name, cookie_of
from penstock.proxy.admin.json_answers import error_answer, json_answer
from penstock.proxy.admin.origins import from_own_page
from penstock.proxy.admin.page.attempts import Attempts
from penstock.proxy.admin.page.sessions import LIFETIME_S, digest_of
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.wire.party import party_of

logger = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 8_192
BODY_S: Final = 5.0


class Entrance:
    """Begins and ends sessions."""

    def __init__(self, plane: DataPlane, guard: Guard) -> None:
        self._plane = plane
        self._guard = guard
        self._attempts = Attempts()

    async def who(self, request: web.Request) -> web.Response:
        """What this page may do. That it may do nothing is an answer, too, and no error."""
        try:
            asker = self._guard.asker(request)
        except Refused as error:
            # Without a token it asks for one. What no token helps against is told.
            why = str(error) if error.status is HTTPStatus.FORBIDDEN else None
            return json_answer({"kind": None, "access": "none", "message": why})
        return json_answer({"kind": asker.kind, "access": asker.access})

    async def sign_in(self, request: web.Request) -> web.Response:
        """Begin a session of who shows a token."""
        if not from_own_page(request.method, request.headers):
            return _not_our_page()
        owner = party_of(request.remote or "")
        away = asyncio.Event()
        # Before its body: a body that never comes holds a place that others may take.
        attempt = self._attempts.begin(owner, self._plane.now(), away.set)
        access: Access | None = None
        compared = False
        try:
            given = await _unless(away, _token_in(request))
            if given is None and not away.is_set():
                message = 'The body must be {"token": "TOKEN"}, as application/json.'
                return error_answer(400, "invalid_request", message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(attempt.put_off_s):
                    await away.wait()
            if given is None or away.is_set():
                return _too_many()
            compared, access = True, self._guard.access_of(given)
        finally:
            failures = self._attempts.end(attempt, self._plane.now(), succeeded=access is not None)
            if compared and access is None:
                _tell_of(request, failures)
        if access is None:
            return error_answer(401, "unauthorized", "This token is wrong.")
        return self._begin(request, given, owner, access)

    def _begin(self, request: web.Request, token: str, owner: str, access: Access) -> web.Response:
        session = self._guard.sessions.begin(digest_of(token), owner, self._plane.now())
        answer = json_answer({"kind": "page", "access": access})
        answer.set_cookie(
            cookie_name(request),
            session,
            max_age=int(LIFETIME_S),
            path="/",
            httponly=True,
            samesite="Strict",
        )
        logger.info("a session of the page began access=%s from=%s", access, request.remote)
        return answer

    async def sign_out(self, request: web.Request) -> web.Response:
        """End the session of this browser, if it has one."""
        if not from_own_page(request.method, request.headers):
            return _not_our_page()
        if self._guard.sessions.end(cookie_of(request)):
            logger.info("a session of the page ended from=%s", request.remote)
        answer = web.Response(status=HTTPStatus.NO_CONTENT)
        answer.del_cookie(cookie_name(request), path="/", httponly=True, samesite="Strict")
        return answer


async def _token_in(request: web.Request) -> str | None:
    """The token in the body. None if that is not what it should be."""
    if request.content_type != "application/json" or (request.content_length or 0) > BODY_BYTES_MAX:
        return None
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            while len(body) <= BODY_BYTES_MAX and (piece := await request.content.readany()):
                body += piece
        told = orjson.loads(body) if len(body) <= BODY_BYTES_MAX else None
    except (TimeoutError, ConnectionError, web.RequestPayloadError, orjson.JSONDecodeError):
        return None
    token = told.get("token") if isinstance(told, dict) else None
    return token if isinstance(token, str) else None


async def _unless(away: asyncio.Event, token: Coroutine[Any, Any, str | None]) -> str | None:
    """The token, or None as soon as the attempt has to give way."""
    reading = asyncio.ensure_future(token)
    leaving = asyncio.ensure_future(away.wait())
    try:
        await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else None
    finally:
        reading.cancel()
        leaving.cancel()


def _tell_of(request: web.Request, failures: int) -> None:
    """One line for each power of two of failures: who tries fast fills no log."""
    if failures & (failures - 1) == 0:
        logger.warning("a wrong token for the page from=%s tries=%d", request.remote, failures)


def _not_our_page() -> web.Response:
    return error_answer(403, "forbidden", "Sessions are for the page of this admin port only.")


def _too_many() -> web.Response:
    answer = error_answer(429, "overloaded", "Too many attempts at once: try again in a moment.")
    answer.headers["Retry-After"] = "1"
    return answer
