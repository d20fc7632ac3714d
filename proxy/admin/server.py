"""The admin port: probes, metrics, the state of the fleet and changes to it. Never the data port.

On an address other than loopback, only what probes and Prometheus need works without the token. On
loopback without a token everybody on the machine may ask, but no web page in a browser there: the
requests of a page have an `Origin`, or a foreign `Host` if its name was pointed at this address.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from hashlib import sha256
from time import monotonic
from typing import Final

import orjson
from aiohttp import web

from penstock import proxy
from penstock.balancing.backend import AdminState, Backend
from penstock.balancing.fleet import UnknownModel
from penstock.balancing.outline import Steps, T
from penstock.balancing.reader import NO_OBJECT, MalformedAsk
from penstock.conf.issues import ConfigError
from penstock.conf.kinds import is_loopback
from penstock.conf.load import Loaded
from penstock.conf.show import as_json
from penstock.health.monitor import Monitor
from penstock.proxy.admin.explanation import path_of, render
from penstock.proxy.admin.index import INDEX
from penstock.proxy.admin.listing import describe
from penstock.proxy.admin.visitors import Visitors
from penstock.proxy.data.invocations import INVOCATIONS, invoked_path
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.reading import reading_ask
from penstock.proxy.errors.client import ModelNotFound
from penstock.proxy.errors.own import Draining
from penstock.proxy.reload.reload import Reload
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.telemetry.exposition import CONTENT_TYPE, Exposition
from penstock.proxy.telemetry.families import PenstockCollector

logger = logging.getLogger(__name__)

# A request to be explained may be as large as any. This many are in memory at once, and each body
# has this long to arrive.
BODIES_MAX: Final = 2
BODY_S: Final = 3.0
# Requests may be refused for lack of memory this long before others shall get them instead.
REFUSING_S: Final = 10.0
_OPEN_PATHS: Final = frozenset({"/", "/livez", "/readyz", "/metrics"})
_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    503: "service_unavailable_error",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Admin:
    """The admin application over a data plane and its monitor."""

    def __init__(
        self,
        plane: DataPlane,
        monitor: Monitor,
        reload: Reload,
        retirement: Retirement,
        visitors: Visitors,
    ) -> None:
        self._plane = plane
        self._monitor = monitor
        self._reload = reload
        self._retirement = retirement
        self._visitors = visitors
        # The address of the open port: a reload does not change it.
        self._local = is_loopback(plane.settings.admin.host)
        self._bodies = asyncio.Semaphore(BODIES_MAX)
        self._exposition = Exposition(PenstockCollector(plane.metrics, lambda: retirement.known))

    def application(self) -> web.Application:
        application = web.Application(
            middlewares=[self._visit, _errors_as_json, self._authorize],
            client_max_size=self._plane.settings.limits.body_bytes,
        )
        application.add_routes(
            [
                web.get("/", _index),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/api/v1/backends", self._backends),
                web.get("/api/v1/proxy", self._proxy),
                web.get("/api/v1/config", self._config),
                web.post("/api/v1/reload", self._reload_now),
                web.post("/api/v1/explain", self._explain),
                web.post("/api/v1/backends/{name}/{state:drain|ready|maint}", self._set_state),
            ]
        )
        return application

    @web.middleware
    async def _visit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._visitors.begin(request.protocol)
        try:
            return await handler(request)
        finally:
            self._visitors.end(request.protocol)

    # Who may ask --------------------------------------------------------------------------

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _OPEN_PATHS:
            return await handler(request)
        # A loopback port is open without a token, and guarded when a token is configured.
        token = self._plane.settings.admin.token
        if token is not None or not self._local:
            if token is None or not _bears(request, token.get_secret_value()):
                message = "The admin token is missing or wrong: Authorization: Bearer TOKEN."
                if token is None:
                    message = "On this address admin.token_file must be configured."
                return _error(401, "unauthorized", message)
        elif "Origin" in request.headers or not is_loopback(_host_of(request)):
            message = "Not for web pages: configure admin.token_file, or ask localhost directly."
            return _error(403, "forbidden", message)
        return await handler(request)

    # What is asked --------------------------------------------------------------------------

    async def _livez(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        # Also ready when all backends are down: restarting the proxy would not help. Not ready
        # while its memory is short, for another instance has its own.
        state = self._state()
        return _json({"status": "ok"}) if state == "ready" else _json({"status": state}, 503)

    async def _proxy(self, request: web.Request) -> web.Response:
        return _json(
            {
                "version": proxy.__version__,
                "state": self._state(),
                "reload_failed": self._reload.failed,
                "needs_restart": self._reload.needs_restart,
            }
        )

    def _state(self) -> str:
        if self._plane.draining:
            return "draining"
        short_s = self._plane.overload.short_s(self._plane.now())
        if not self._plane.memory.suffices or short_s > REFUSING_S:
            return "memory"
        return "ready" if self._monitor.started.is_set() else "starting"

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=await self._exposition.body(), headers={"content-type": CONTENT_TYPE}
        )

    async def _backends(self, request: web.Request) -> web.Response:
        now_s = monotonic()
        listing = [self._described(backend, now_s) for backend in self._plane.fleet.backends]
        listing += [
            describe(backend, {}, now_s, removed=True) for backend, _ in self._retirement.members
        ]
        return _json(listing)

    def _after_change(self, backend: Backend, before: AdminState) -> dict[str, object]:
        """The backend, and whether its pool can still serve. If not any more, that is logged."""
        peers = [each for each in self._plane.fleet.backends if each.pool == backend.pool]
        can_serve = any(each.can_serve for each in peers)
        taken_out = before is AdminState.READY and backend.admin_state is not AdminState.READY
        if taken_out and not can_serve:
            logger.warning("no backend of the pool can serve pool=%s", backend.pool)
        return {**self._described(backend, monotonic()), "pool_can_serve": can_serve}

    def _described(self, backend: Backend, now_s: float) -> dict[str, object]:
        probes, to_return = self._monitor.last_probes(backend), self._monitor.to_return(backend)
        return describe(backend, probes, now_s, to_return=to_return)

    async def _config(self, request: web.Request) -> web.Response:
        running = self._plane.configuration
        return _json(as_json(Loaded(running.settings, running.origins)))

    async def _reload_now(self, request: web.Request) -> web.Response:
        try:
            change = await self._reload()
        except Draining as error:
            return _error(error.status, error.code, "Too late: this proxy is shutting down.")
        except ConfigError as error:
            message = "The configuration cannot be used; the previous one stays in use."
            answer = _error_of(422, "invalid_configuration", message)
            answer["issues"] = [str(issue) for issue in error.issues]
            return _json({"error": answer}, 422)
        return _json(change)

    async def _explain(self, request: web.Request) -> web.Response:
        """Tell where the request in the body would go. `path` and `tenant` say whose it is."""
        if self._bodies.locked():  # waiting would occupy one of the port's few connections
            return _error(429, "overloaded", "Other requests are being explained; retry.")
        try:
            async with self._bodies:
                async with asyncio.timeout(BODY_S):
                    body = await request.read()
                return await self._explained(request, body)
        except (TimeoutError, ConnectionError):  # or the client has left
            return _error(408, "request_timeout", "The body did not come in time.")

    async def _explained(self, request: web.Request, body: bytes) -> web.Response:
        plane = self._plane
        if not body:
            return _error(400, "invalid_request", NO_OBJECT)
        tenant = request.query.get("tenant", "")
        if tenant and all(tenant != each.name for each in plane.settings.tenants):
            return _error(
                404, "unknown_tenant", "No tenant of this name is configured; see `tenants`."
            )
        path = request.query.get("path", "")
        if not path:
            path = await _taken(path_of(body))
        if path.encode() == INVOCATIONS:
            path = (await _taken(invoked_path(body))).decode()
        endpoint = plane.paths.find(b"POST", path.encode())
        if endpoint is None:
            return _error(
                404,
                "not_proxied",
                "`path` must be a path that this proxy serves, such as ?path=/v1/completions.",
            )
        headers = [
            (name.lower(), value)
            for name, value in request.raw_headers
            if name.lower() != b"origin"
        ]
        try:
            ask = await _taken(reading_ask(plane, path, endpoint, headers, body, tenant))
            choice = plane.gate.explain(ask, monotonic())
        except MalformedAsk as error:
            return _error(400, "invalid_request", str(error))
        except UnknownModel:
            return _error(404, "model_not_found", str(ModelNotFound(ask.model)))
        policies = {pool.name: pool.policy for pool in plane.settings.pools}
        return _json(render(ask, choice, policies.get(choice.pool or "")))

    async def _set_state(self, request: web.Request) -> web.Response:
        name, state = request.match_info["name"], AdminState(request.match_info["state"])
        for backend in self._plane.fleet.backends:
            if backend.name == name:
                before, backend.admin_state = backend.admin_state, state
                if state is not before:
                    logger.info("backend set to %s name=%s was=%s", state, name, before)
                    if before is AdminState.MAINT:
                        self._monitor.resume(backend)
                return _json(self._after_change(backend, before))
        names = ", ".join(backend.name for backend in self._plane.fleet.backends[:20])
        return _error(404, "unknown_backend", f"No backend has this name; backends: {names}.")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give aiohttp's own refusals our shape, and faults no text of theirs."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _error(404, "unknown_path", "The admin port has no such path.")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = _error(405, "method_not_allowed", f"This path takes {allowed}.")
        answer.headers["Allow"] = allowed
        return answer
    except (web.HTTPException, asyncio.CancelledError):
        raise
    except Exception:
        logger.exception("admin request failed method=%s", request.method)
        return _error(500, "internal_error", "An internal error of penstock; see its log.")


async def _index(request: web.Request) -> web.Response:
    return web.Response(text=INDEX)


async def _taken(steps: Steps[T]) -> T:
    """Take all steps and return their result. Other work runs between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(content) + b"\n", status=status, content_type="application/json"
    )


def _error(status: int, code: str, message: str) -> web.Response:
    return _json({"error": _error_of(status, code, message)}, status)


def _error_of(status: int, code: str, message: str) -> dict[str, object]:
    """An error in the shape of the data port's (OpenAI's)."""
    kind = _KINDS.get(status, "invalid_request_error")
    return {"message": message, "type": kind, "param": None, "code": code}


def _bears(request: web.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Compare digests: that takes the same time for any input.
    wanted = sha256(token.encode()).digest()
    same = hmac.compare_digest(sha256(given.encode("utf-8", "surrogateescape")).digest(), wanted)
    return same and scheme.lower() == "bearer"


def _host_of(request: web.Request) -> str:
    """The host name in `Host`, without the port."""
    host = request.headers.get("host", "")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
