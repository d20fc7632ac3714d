"""A bare pass-through on aiohttp: what a proxy costs that is written the usual way.

It streams chunks through and counts nothing.
`python -m penstock.bench.peers.passthrough PORT BACKEND_URL`.
"""

import asyncio
import signal
import sys
from typing import Final

import aiohttp
import uvloop
from aiohttp import web

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade"}
)


async def serve(port: int, backend: str) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            return await _relay(session, backend, request)

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", relay)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4_096).start()
        await stopped.wait()
        await runner.cleanup()


async def _relay(
    session: aiohttp.ClientSession, backend: str, request: web.Request
) -> web.StreamResponse:
    body = await request.read()
    headers = {
        name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP
    }
    url = backend + request.path_qs
    async with session.request(request.method, url, headers=headers, data=body or None) as upstream:
        answer = web.StreamResponse(status=upstream.status)
        for name, value in upstream.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                answer.headers[name] = value
        answer.content_length = upstream.content_length
        await answer.prepare(request)
        async for data in upstream.content.iter_any():
            await answer.write(data)
        await answer.write_eof()
    return answer


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
