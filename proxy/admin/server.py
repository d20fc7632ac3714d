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
from itertools import chain
from time import monotonic
from typing import Final

from aiohttp import web

from penstock.balancing.backend import AdminState, Backend
from penstock.conf.issues import ConfigError
from penstock.conf.kinds import is_loopback
from penstock.conf.load import Loaded
from penstock.conf.show import as_json
from penstock.health.monitor import Monitor
from penstock.proxy.admin.explanation import Explanation
from penstock.proxy.admin.index import INDEX
from penstock.proxy.admin.json_answers import error_answer, error_of, json_answer, json_list
from penstock.proxy.admin.large_answer import large_answer
from penstock.proxy.admin.listing import describe
from penstock.proxy.admin.proxy_listing import proxy_listing
from penstock.proxy.admin.queue_listing import queue_listing
from penstock.proxy.admin.request_listing import BadQuery, request_listing, requests_with_id
from penstock.proxy.admin.slo_listing import slo_listing
from penstock.proxy.admin.tenant_listing import tenant_listing
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.admin.visitors import Visitors
from penstock.proxy.data.account import count_all
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.errors.own import Draining
from penstock.proxy.reload.reload import Reload
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.telemetry.exposition import CONTENT_TYPE, Exposition
from penstock.proxy.telemetry.families import PenstockCollector

logger = logging.getLogger(__name__)

# Requests may be refused for lack of memory this long before others shall get them instead.
REFUSING_S: Final = 10.0
_OPEN_PATHS: Final = frozenset({"/", "/livez", "/readyz", "/metrics"})
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
        verdicts: Verdicts,
    ) -> None:
        self._plane = plane
        self._verdicts = verdicts
        self._monitor = monitor
        self._reload = reload
        self._retirement = retirement
        self._visitors = visitors
        # The address of the open port: a reload does not change it.
        self._local = is_loopback(plane.settings.admin.host)
        self._explanation = Explanation(plane)
        # Everybody may read the metrics, but not those that name tenants or costs.
        self._exposition, self._anonymous = [
            Exposition(PenstockCollector(plane.metrics, lambda: retirement.known, secrets=told))
            for told in (True, False)
        ]

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._visit, _errors_as_json, self._authorize])
        application.add_routes(
            [
                web.get("/", _index),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/api/v1/backends", self._backends),
                web.get("/api/v1/proxy", self._proxy),
                web.get("/api/v1/verdict", self._verdict),
                web.get("/api/v1/queue", self._queue),
                web.get("/api/v1/slo", self._slo),
                web.get("/api/v1/requests", self._requests),
                web.get("/api/v1/requests/{id:.+}", self._request),
                web.get("/api/v1/tenants", self._tenants),
                web.get("/api/v1/config", self._config),
                web.post("/api/v1/reload", self._reload_now),
                web.post("/api/v1/explain", self._explanation.answer),
                web.post("/api/v1/backends/{name}/{state:drain|ready|maint}", self._set_state),
            ]
        )
        return application

    @web.middleware
    async def _visit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._visitors.begin(request.protocol)
        count_all(self._plane)
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
                return error_answer(401, "unauthorized", message)
        elif "Origin" in request.headers or not is_loopback(_host_of(request)):
            message = "Not for web pages: configure admin.token_file, or ask localhost directly."
            return error_answer(403, "forbidden", message)
        return await handler(request)

    # What is asked --------------------------------------------------------------------------

    async def _livez(self, request: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        # Also ready when all backends are down: restarting the proxy would not help. Not ready
        # while its memory is short, for another instance has its own.
        state = self._state()
        return (
            json_answer({"status": "ok"})
            if state == "ready"
            else json_answer({"status": state}, 503)
        )

    async def _proxy(self, request: web.Request) -> web.Response:
        return json_answer(proxy_listing(self._plane, self._reload, self._state()))

    def _state(self) -> str:
        if self._plane.draining:
            return "draining"
        short_s = self._plane.overload.short_s(self._plane.now())
        if not self._plane.memory.suffices or short_s > REFUSING_S:
            return "memory"
        return "ready" if self._monitor.started.is_set() else "starting"

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        admin = self._plane.settings.admin
        tokens = [each for each in (admin.token, admin.metrics_token) if each is not None]
        named = any(_bears(request, each.get_secret_value()) for each in tokens)
        exposition = self._exposition if named or self._local else self._anonymous
        return await large_answer(request, await exposition.body(), CONTENT_TYPE)

    async def _tenants(self, request: web.Request) -> web.Response:
        return json_answer(tenant_listing(self._plane, self._plane.now()))

    async def _slo(self, request: web.Request) -> web.Response:
        return json_answer(slo_listing(self._plane.slos.evaluated(), self._plane.now()))

    async def _backends(self, request: web.Request) -> web.StreamResponse:
        used, removed = self._plane.fleet.backends, [each for each, _ in self._retirement.members]
        entries = chain(
            (self._described(each, monotonic()) for each in used),
            (self._described(each, monotonic(), removed=True) for each in removed),
        )
        return await large_answer(request, await json_list(entries), "application/json")

    def _after_change(self, backend: Backend, before: AdminState) -> dict[str, object]:
        """The backend, and whether its pool can still serve. If not any more, that is logged."""
        peers = [each for each in self._plane.fleet.backends if each.pool == backend.pool]
        can_serve = any(each.can_serve for each in peers)
        taken_out = before is AdminState.READY and backend.admin_state is not AdminState.READY
        if taken_out and not can_serve:
            logger.warning("no backend of the pool can serve pool=%s", backend.pool)
        return {**self._described(backend, monotonic()), "pool_can_serve": can_serve}

    def _described(
        self, backend: Backend, now_s: float, *, removed: bool = False
    ) -> dict[str, object]:
        counts = self._plane.metrics.of(backend.pool).backends.get(backend.name)
        return describe(
            backend,
            self._monitor.last_probes(backend),
            now_s,
            to_return=self._monitor.to_return(backend),
            lately=counts.lately if counts is not None else None,
            pace=self._verdicts.pace(backend),
            removed=removed,
        )

    async def _verdict(self, request: web.Request) -> web.Response:
        return json_answer(self._verdicts.listing())

    async def _queue(self, request: web.Request) -> web.Response:
        return json_answer(await queue_listing(self._plane))

    async def _requests(self, request: web.Request) -> web.StreamResponse:
        try:
            told = await request_listing(self._plane, request.query)
        except BadQuery as error:
            return error_answer(400, "invalid_query", str(error))
        return await large_answer(request, await json_list(told), "application/json")

    async def _request(self, request: web.Request) -> web.StreamResponse:
        try:
            told = await requests_with_id(self._plane, request.match_info["id"], request.query)
        except BadQuery as error:
            return error_answer(400, "invalid_query", str(error))
        first = next(told, None)
        if first is None:
            message = "No request with this id is kept: it is long over, or never came here."
            return error_answer(404, "unknown_request", message)
        return await large_answer(
            request, await json_list(chain((first,), told)), "application/json"
        )

    async def _config(self, request: web.Request) -> web.Response:
        running = self._plane.configuration
        return json_answer(as_json(Loaded(running.settings, running.origins)))

    async def _reload_now(self, request: web.Request) -> web.Response:
        try:
            change = await self._reload()
        except Draining as error:
            return error_answer(error.status, error.code, "Too late: this proxy is shutting down.")
        except ConfigError as error:
            message = "The configuration cannot be used; the previous one stays in use."
            answer = error_of(422, "invalid_configuration", message)
            answer["issues"] = [str(issue) for issue in error.issues]
            return json_answer({"error": answer}, 422)
        return json_answer(change)

    async def _set_state(self, request: web.Request) -> web.Response:
        name, state = request.match_info["name"], AdminState(request.match_info["state"])
        for backend in self._plane.fleet.backends:
            if backend.name == name:
                before, backend.admin_state = backend.admin_state, state
                if state is not before:
                    logger.info("backend set to %s name=%s was=%s", state, name, before)
                    if before is AdminState.MAINT:
                        self._monitor.resume(backend)
                return json_answer(self._after_change(backend, before))
        names = ", ".join(backend.name for backend in self._plane.fleet.backends[:20])
        return error_answer(404, "unknown_backend", f"No backend has this name; backends: {names}.")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give aiohttp's own refusals our shape, and faults no text of theirs."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return error_answer(404, "unknown_path", "The admin port has no such path.")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = error_answer(405, "method_not_allowed", f"This path takes {allowed}.")
        answer.headers["Allow"] = allowed
        return answer
    except (web.HTTPException, asyncio.CancelledError):
        raise
    except Exception:
        logger.exception("admin request failed method=%s", request.method)
        return error_answer(500, "internal_error", "An internal error of penstock; see its log.")


async def _index(request: web.Request) -> web.Response:
    return web.Response(text=INDEX)


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
