"""A classifier that is good, slow, hung, talks garbage, or is dead."""

import asyncio
import ssl
from typing import Any, Final

import orjson
from aiohttp import web

MODES: Final = ("good", "slow", "hung", "garbage", "huge", "trickling", "failing")
SLOW_S: Final = 0.05


class Classifier:
    """Labels short texts `simple`, longer ones `hard`. Texts with `STUCK` it never answers."""

    def __init__(self) -> None:
        self.mode = "good"
        self.texts: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{self.port}/classify", "deadline_ms": 300}

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen; after a stop on the same port."""
        app = web.Application()
        app.router.add_post("/classify", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=tls
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        text = orjson.loads(await request.read())["text"]
        self.texts.append(text)
        self.heads.append({name.lower(): value for name, value in request.headers.items()})
        if self.mode == "hung" or "STUCK" in text:
            await asyncio.Event().wait()
        if self.mode == "slow":
            await asyncio.sleep(SLOW_S)
        if self.mode == "failing":
            return web.Response(status=500, body=b'{"label":"simple"}')
        if self.mode in ("garbage", "huge"):
            return web.Response(body=b"garbage" if self.mode == "garbage" else bytes(1 << 22))
        if self.mode == "trickling":
            return await self._trickle(request)
        return web.json_response({"label": "simple" if len(text) < 80 else "hard"})

    async def _trickle(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.02)
