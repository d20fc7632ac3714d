"""The admin port's answers as JSON, errors in the shape of the data port's."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import orjson
from aiohttp import web

from penstock.proxy.errors.error import PenstockError

# Of a long list so many entries are made in one turn of the loop: each takes some 25 us.
AT_ONCE: Final = 32
_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    503: "service_unavailable_error",
}


def json_answer(content: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(content) + b"\n", status=status, content_type="application/json"
    )


async def json_list(entries: Iterable[object]) -> bytes:
    """A list as JSON. After some entries others run, so `entries` must bear changes meanwhile."""
    parts = []
    for number, entry in enumerate(entries, 1):
        parts.append(orjson.dumps(entry))
        if not number % AT_ONCE:
            await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]\n"


def error_answer(status: int, code: str, message: str) -> web.Response:
    return json_answer({"error": error_of(status, code, message)}, status)


def answer_of(error: PenstockError) -> web.Response:
    """An error of the data port, with its hints."""
    answer = error_answer(error.status, error.code, str(error))
    answer.headers.update((name.decode(), value.decode()) for name, value in error.headers)
    return answer


def error_of(status: int, code: str, message: str) -> dict[str, object]:
    """An error in the shape of the data port's (OpenAI's)."""
    kind = _KINDS.get(status, "invalid_request_error")
    return {"message": message, "type": kind, "param": None, "code": code}


# As much as the transport takes before it has the writer wait.
PIECE_BYTES: Final = 65_536


async def large_answer(request: web.Request, body: bytes, content_type: str) -> web.StreamResponse:
    """Send `body` in pieces. As one it would be copied for each reader, however slow that is.

    `Visitors` limits the time.
    """
    headers = {"content-type": content_type}
    if len(body) <= PIECE_BYTES or request.method == "HEAD":
        return web.Response(body=body, headers=headers)
    answer = web.StreamResponse(headers=headers)
    answer.content_length = len(body)
    await answer.prepare(request)
    for at in range(0, len(body), PIECE_BYTES):
        await answer.write(body[at : at + PIECE_BYTES])
    await answer.write_eof()
    return answer


WAITING_MAX: Final = 16


class Crowded(Exception):
    """Too many wait for such a list already."""


class ListTurns:
    """Long lists of one kind are made one after another: each takes some of every turn of the loop.
    Who has left meanwhile gets none, and a bounded number waits.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, request: web.Request) -> AsyncIterator[None]:
        """Wait for a turn. Raises Crowded, and ConnectionResetError if the client has left."""
        if self._waiting >= WAITING_MAX:
            raise Crowded
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError
            yield
        finally:
            self._lock.release()
