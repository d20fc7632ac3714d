"""The admin port's answers as JSON, errors in the shape of the data port's."""

import asyncio
from collections.abc import Iterable
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
