"""Sends a text of many megabytes as its reader takes it."""

from typing import Final

from aiohttp import web

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
