"""`/ui/session`: a token is shown once, and the page asks with a cookie from then on.

The cookie can be neither read by scripts nor sent by pages of other sites. It is no `Secure`
cookie: whether TLS ends before this port is not known here.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from penstock.proxy.admin.answers import error_answer, json_answer
from penstock.proxy.admin.guard import (
    LIFETIME_S,
    Access,
    Guard,
    Refused,
    cookie_name,
    cookie_of,
    digest_of,
    from_own_page,
)
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.wire.client_address import party_of

QUIET_S: Final = 60.0  # after so long without an attempt, an address has a clean sheet
FREE: Final = 3  # so many failures cost nothing: people mistype
STEP_S: Final = 0.25
OWN_MAX_S: Final = 2.0
# From many addresses at once: after so many failures everybody waits for this.
FREE_OF_ALL: Final = 60
ALL_MAX_S: Final = 0.5
ADDRESSES_MAX: Final = 1_024
WAITING_MAX: Final = 16


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt. `displaced` is called when it must give way."""

    owner: str
    put_off_s: float
    displaced: Callable[[], None]


class Attempts:
    """The attempts of the last minute, by address: no address locks out another.

    A token is compared only after a delay, so who leaves earlier has learnt nothing. It grows with
    the failures of the last minute, those of the same address above all, and has a bound. How many
    wait is bounded too: for one more, one of the address with the most gives way.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()  # the longest quiet first
        self._all = 0
        self._all_s = 0.0
        self._waiting: dict[Attempt, None] = {}

    def begin(self, owner: str, now_s: float, displaced: Callable[[], None]) -> Attempt:
        """An attempt begins, and counts as a failure until it succeeds."""
        count = self._own(owner, now_s) + 1
        everybody = self._all + 1 if now_s < self._all_s + QUIET_S else 1
        self._all, self._all_s = everybody, now_s
        self._note(owner, count, now_s)
        put_off_s = min(OWN_MAX_S, STEP_S * max(0, count - FREE))
        if everybody > FREE_OF_ALL:
            put_off_s = max(put_off_s, ALL_MAX_S)
        if len(self._waiting) >= WAITING_MAX:
            self._make_room()
        attempt = Attempt(owner, put_off_s, displaced)
        self._waiting[attempt] = None
        return attempt

    def end(self, attempt: Attempt, now_s: float, *, succeeded: bool) -> int:
        """It is over. Returns how many of its address have failed."""
        self._waiting.pop(attempt, None)
        count = self._own(attempt.owner, now_s)
        if succeeded and count:
            # It takes back itself only: a token for readers clears no guesses at the other.
            count -= 1
            self._all -= self._all > 0
            self._note(attempt.owner, count, now_s)
        return count

    def _own(self, owner: str, now_s: float) -> int:
        count, at_s = self._counts.get(owner, (0, 0.0))
        return count if now_s < at_s + QUIET_S else 0

    def _note(self, owner: str, count: int, now_s: float) -> None:
        self._counts[owner] = count, now_s
        self._counts.move_to_end(owner)
        if len(self._counts) > ADDRESSES_MAX:
            self._counts.popitem(last=False)

    def _make_room(self) -> None:
        held = Counter([each.owner for each in self._waiting])
        most = max(held.values())
        # The last of them: those that came before it have waited longer.
        loser = [each for each in self._waiting if held[each.owner] == most][-1]
        del self._waiting[loser]
        loser.displaced()


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
