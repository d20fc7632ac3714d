"""A stage for the page: its real files and headers, with figures that a test makes up."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import orjson
from aiohttp import web

from penstock.proxy.admin.page.shell import Shell, guard_answers

PERIOD_S = 0.1


class Stage:
    """`snapshot`: what the page is told from now on. None: nothing, and the stream stays open.

    `status`: of the stream. `asked`: what the page wanted to change.
    """

    def __init__(self) -> None:
        self.snapshot: dict[str, Any] | None = None
        self.status = 200
        self.access = "full"
        self.parts: list[dict[str, Any]] = []
        self.past: dict[str, Any] = {"seconds": [[]] * 5, "minutes": [[]] * 5, "verdicts": []}
        self.asked: list[tuple[str, str]] = []
        self.url = ""
        self._streams: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None
        self._shell = Shell()

    async def start(self) -> None:
        application = web.Application()
        application.on_response_prepare.append(guard_answers)
        application.add_routes(
            [
                web.get("/ui", self._shell.index),
                web.get("/ui/session", self._session),
                web.get("/ui/{file}", self._shell.file),
                web.get("/api/v1/events", self._events),
                web.get("/api/v1/history", self._history),
                web.get("/api/v1/requests/{id:.+}", self._request),
                web.post("/api/v1/backends/{name:.+}/{state}", self._change),
            ]
        )
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        (address,) = self._runner.addresses
        self.url = f"http://127.0.0.1:{address[1]}/ui"

    async def stop(self) -> None:
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()

    def cut(self) -> None:
        """Break off all streams."""
        for each in self._streams:
            each.cancel()

    async def _session(self, request: web.Request) -> web.Response:
        if self.status == 401:
            return _json({"kind": None, "access": "none"})
        return _json({"kind": "local", "access": self.access})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self.status != 200:
            return _json({"error": {"message": "No."}}, self.status)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(ConnectionError), self._known(task):
            while True:
                if self.snapshot is not None:
                    await stream.write(b"data: %b\n\n" % orjson.dumps(self.snapshot))
                await asyncio.sleep(PERIOD_S)
        return stream

    @contextlib.contextmanager
    def _known(self, task: asyncio.Task[Any]) -> Iterator[None]:
        self._streams.add(task)
        try:
            yield
        finally:
            self._streams.discard(task)

    async def _history(self, request: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(self.past), content_type="application/json")

    async def _request(self, request: web.Request) -> web.Response:
        if not self.parts:
            return _json({"error": {"message": "No request with this id is kept."}}, 404)
        return _json(self.parts)

    async def _change(self, request: web.Request) -> web.Response:
        name, state = request.match_info["name"], request.match_info["state"]
        self.asked.append((name, state))
        told = {"admin_state": state, "requests_in_flight": 0, "pool_can_serve": True}
        return _json({"name": name, **told})


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")
