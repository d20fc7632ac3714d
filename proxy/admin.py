"""The admin port: probes, metrics, the state of the fleet. Never the data port.

Off loopback only what probes and Prometheus need answers without the token.
"""

import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from time import monotonic
from typing import Final

import orjson
from aiohttp import web

from balancing.backend import Backend
from conf.settings import AdminSettings
from health.monitor import Monitor
from proxy.exposition import CONTENT_TYPE, Exposition, PenstockCollector
from proxy.plane import DataPlane

_OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/metrics"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Admin:
    """The admin application over a data plane and its monitor."""

    def __init__(self, plane: DataPlane, monitor: Monitor, settings: AdminSettings) -> None:
        self._plane = plane
        self._monitor = monitor
        self._token = settings.token.get_secret_value() if settings.token else None
        self._local = _is_loopback(settings.host)
        self._exposition = Exposition(PenstockCollector(plane.metrics, plane.fleet))

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._authorize])
        application.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/api/v1/backends", self._backends),
            ]
        )
        return application

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        # A loopback port is open without a token, and guarded once there is one.
        guarded = self._token is not None or not self._local
        if guarded and request.path not in _OPEN_PATHS and not self._allowed(request):
            return _json(
                {
                    "error": {
                        "message": "The admin token is missing or wrong.",
                        "code": "unauthorized",
                    }
                },
                401,
            )
        return await handler(request)

    def _allowed(self, request: web.Request) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return self._token is not None and hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), self._token.encode()
        )

    async def _livez(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._plane.draining:
            return _json({"status": "draining"}, 503)
        if not self._monitor.started.is_set():
            return _json({"status": "starting"}, 503)
        # Also when all backends are down: restarting the proxy would not help.
        return _json({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=await self._exposition.body(), headers={"content-type": CONTENT_TYPE}
        )

    async def _backends(self, request: web.Request) -> web.Response:
        now_s = monotonic()
        return _json([self._describe(backend, now_s) for backend in self._plane.fleet.backends])

    def _describe(self, backend: Backend, now_s: float) -> dict[str, object]:
        backend.advance(now_s)
        return {
            "name": backend.name,
            "url": backend.url,
            "pool": backend.pool,
            "state": backend.state,
            "reason": backend.reason,
            "admin_state": backend.admin_state,
            "weight": backend.weight,
            "models": sorted(backend.models or ()),
            "requests_in_flight": backend.requests_in_flight,
            "queued_prefill_tokens": backend.queued_prefill_tokens,
            "active_decode_tokens": backend.active_decode_tokens,
            "streams": backend.streams,
            "requests_total": backend.requests_total,
            "failures_total": backend.failures_total,
            "prefill_tokens_per_s": round(backend.prefill_rate.tokens_per_s),
            "last_probe": {
                level: {
                    "at": round(probe.at_unix_s, 3),
                    "passed": probe.passed,
                    "reason": probe.reason,
                }
                for level, probe in self._monitor.last_probes(backend).items()
            },
        }


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(content) + b"\n", status=status, content_type="application/json"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
