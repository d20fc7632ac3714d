"""The admin port: probes, metrics, the state of the fleet and changes to it, and a page that shows
them. Never the data port. `guard` knows who may ask."""

import asyncio
import logging
from collections.abc import Callable
from itertools import chain
from time import time
from typing import Final, Protocol

import orjson
from aiohttp import web

from penstock.balancing.backend import AdminState, Backend
from penstock.conf.issues import ConfigError
from penstock.conf.load import Loaded
from penstock.conf.show import as_json
from penstock.health.monitor import Monitor
from penstock.proxy.admin.answers import (
    Crowded,
    ListTurns,
    error_answer,
    error_of,
    json_answer,
    json_list,
    large_answer,
)
from penstock.proxy.admin.explanation import Explanation
from penstock.proxy.admin.fleet_listing import FleetListing
from penstock.proxy.admin.guard import ASKER, Asker, Guard, Handler
from penstock.proxy.admin.listings import (
    canary_listing,
    proxy_listing,
    queue_listing,
    slo_listing,
    state_of,
    tenant_listing,
)
from penstock.proxy.admin.page.entrance import Entrance
from penstock.proxy.admin.page.events import Events, Snapshot
from penstock.proxy.admin.page.history import History, Rates
from penstock.proxy.admin.page.shell import Shell, guard_answers
from penstock.proxy.admin.request_listing import BadQuery, request_listing, requests_with_id
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.admin.visitors import Visitors
from penstock.proxy.data.account import count_all
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.discovery.discovery import Discovery
from penstock.proxy.discovery.operators import CannotAdd, Operators
from penstock.proxy.errors.own import Draining
from penstock.proxy.reload.reload import Reload
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.telemetry.exposition import CONTENT_TYPE, Exposition
from penstock.proxy.telemetry.families import PenstockCollector

_PATHS: Final = (
    ("GET", "/livez", "whether the proxy runs"),
    (
        "GET",
        "/readyz",
        "whether it should get traffic; 503 while it starts, drains or lacks memory",
    ),
    ("GET", "/metrics", "Prometheus metrics"),
    ("GET", "/ui", "the page: all this live, for people"),
    ("GET", "/ui/session", "what this browser may do"),
    ("POST", "/ui/session", "begins a session of the page, with a token"),
    ("DELETE", "/ui/session", "ends it"),
    ("GET", "/api/v1/events", "what the page shows, once a second (server-sent events)"),
    ("GET", "/api/v1/backends", "every backend: state, reason, load, speed, last probes"),
    ("GET", "/api/v1/proxy", "the proxy itself: version, state, its last reload, what it refuses"),
    ("GET", "/api/v1/history", "the last 24 hours of the charts, and the verdicts that are over"),
    ("GET", "/api/v1/verdict", "what makes each pool slow now, and what to do about it"),
    ("GET", "/api/v1/queue", "what waits for a backend: by class, and what is next"),
    ("GET", "/api/v1/requests", "recent requests, and where their time went"),
    ("GET", "/api/v1/requests/ID", "those with this id"),
    ("GET", "/api/v1/tenants", "what each tenant has used, and what is left of its budgets"),
    ("GET", "/api/v1/slo", "how far each service level is kept, and what is left of its budget"),
    ("GET", "/api/v1/canaries", "where each canary stands, why, and what has happened"),
    ("POST", "/api/v1/canaries/NAME/promote", "gives a route's canary all requests"),
    ("POST", "/api/v1/canaries/NAME/abort", "takes all requests from it"),
    ("POST", "/api/v1/canaries/NAME/restart", "lets it begin at its first step"),
    ("GET", "/api/v1/config", "the configuration in use, with the origin of each value"),
    ("POST", "/api/v1/backends/NAME/drain", "no new requests for a backend; /ready undoes it"),
    ("POST", "/api/v1/backends/NAME/maint", "no new requests and no probes for a backend"),
    ("POST", "/api/v1/backends", "adds the one in the body, if admin.add_backends is true"),
    ("DELETE", "/api/v1/backends/NAME", "removes one that was added so"),
    ("POST", "/api/v1/reload", "reads the configuration again"),
    ("POST", "/api/v1/restart", "has the next process take over, if there is a supervisor"),
    ("POST", "/api/v1/explain", "where the request in the body would go"),
)

_LINES: Final = "".join(f"{method:6} {path:31} {says}\n" for method, path, says in _PATHS)
INDEX: Final = f"""The admin port of penstock.

{_LINES}
Paths below /api need the admin token, if one is configured: Authorization: Bearer TOKEN.
"""


logger = logging.getLogger(__name__)

# Of a head at the admin port, which anybody may send. Reading a long path takes milliseconds. The
# longest field is a token.
LINE_BYTES_MAX: Final = 2_048
FIELD_BYTES_MAX: Final = 4_608
# aiohttp logs heads that it cannot read, with their tokens. Our middleware logs faults instead.
_UNHEARD: Final = logging.getLogger("penstock.unheard")
_UNHEARD.disabled = True


class Handover(Protocol):
    """What a supervised process can do, and knows of former ones (`process/handover.py`)."""

    former: dict[int, int]

    async def restart(self) -> str:
        """Have the next process take over. Returns why it does not, or nothing."""
        ...


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
        discovery: Discovery,
        operators: Operators,
        handover: Handover | None = None,
    ) -> None:
        """`handover`: to the next process. None: there is no supervisor."""
        self._plane = plane
        self._verdicts = verdicts
        self._monitor = monitor
        self._reload = reload
        self._discovery = discovery
        self._operators = operators
        self._handover = handover
        self._retirement = retirement
        self._visitors = visitors
        self._guard = Guard(plane)
        self._fleet = FleetListing(plane, monitor, retirement, verdicts, self._origin)
        self._history = History(Rates(plane))
        self._events = Events(
            Snapshot(plane, self._fleet, verdicts, self._proxy_told, self._history),
            self._guard.still,
            lambda request: visitors.stay(request.protocol),
        )
        self._entrance = Entrance(plane, self._guard)
        self._shell = Shell()
        # Readers of requests keep nobody from the backends.
        self._backend_lists, self._request_lists = ListTurns(), ListTurns()
        self._explanation = Explanation(plane)
        # Everybody may read the metrics, but not those that name tenants or costs.
        self._exposition, self._anonymous = [
            Exposition(PenstockCollector(plane.metrics, lambda: retirement.known, secrets=told))
            for told in (True, False)
        ]

    def runner(self) -> web.AppRunner:
        """The application, ready to be set up."""
        return web.AppRunner(
            self.application(),
            access_log=None,
            logger=_UNHEARD,
            shutdown_timeout=1.0,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
        )

    def application(self) -> web.Application:
        plane = self._plane
        application = web.Application(
            middlewares=[self._visit, _errors_as_json, self._guard.authorize]
        )
        application.on_response_prepare.append(guard_answers)
        application.on_shutdown.append(self._close)
        application.add_routes(
            [
                web.get("/", _index),
                web.get("/livez", _json(lambda: {"status": "ok"})),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/ui", self._shell.index),
                web.get("/ui/session", self._entrance.who),
                web.post("/ui/session", self._entrance.sign_in),
                web.delete("/ui/session", self._entrance.sign_out),
                web.get("/ui/{file}", self._shell.file),
                web.get("/api/v1/events", self._events.answer, allow_head=False),
                web.get("/api/v1/backends", self._backends),
                web.get("/api/v1/proxy", _json(self._proxy_told)),
                web.get("/api/v1/history", self._past),
                web.get("/api/v1/verdict", _json(self._verdicts.listing)),
                web.get("/api/v1/queue", self._queue),
                web.get("/api/v1/slo", _json(self._slos_told)),
                web.get("/api/v1/requests", self._requests),
                web.get("/api/v1/requests/{id:.+}", self._request),
                web.get("/api/v1/canaries", self._canaries),
                web.post("/api/v1/canaries/{name}/promote", self._tell_canary),
                web.post("/api/v1/canaries/{name}/abort", self._tell_canary),
                web.post("/api/v1/canaries/{name}/restart", self._tell_canary),
                web.get("/api/v1/tenants", _json(lambda: tenant_listing(plane, plane.now()))),
                web.get("/api/v1/config", _json(self._config_told)),
                web.post("/api/v1/reload", self._reload_now),
                web.post("/api/v1/restart", self._restart),
                web.post("/api/v1/explain", self._explanation.answer),
                web.post("/api/v1/backends", self._add),
                web.delete("/api/v1/backends/{name}", self._remove),
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

    async def _close(self, application: web.Application) -> None:
        await self._events.close()

    # What is asked --------------------------------------------------------------------------

    async def _readyz(self, request: web.Request) -> web.Response:
        state = state_of(self._plane, self._monitor)
        return (
            json_answer({"status": "ok"})
            if state == "ready"
            else json_answer({"status": state}, 503)
        )

    def _proxy_told(self) -> dict[str, object]:
        state = state_of(self._plane, self._monitor)
        former = self._handover.former if self._handover is not None else {}
        return proxy_listing(self._plane, self._reload, state, former, self._discovery.listing())

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        named = self._guard.sees_names(request)
        exposition = self._exposition if named else self._anonymous
        return await large_answer(request, await exposition.body(), CONTENT_TYPE)

    async def _canaries(self, request: web.Request) -> web.Response:
        trials = self._plane.canaries.trials.values()
        return json_answer(canary_listing(trials, self._plane.now()))

    async def _tell_canary(self, request: web.Request) -> web.Response:
        word = request.path.rpartition("/")[2]
        trial = self._plane.canaries.order(request.match_info["name"], word)
        if trial is None:
            return error_answer(404, "unknown_canary", "No route of this name has a canary.")
        (told,) = canary_listing([trial], self._plane.now())
        return json_answer(told)

    async def _backends(self, request: web.Request) -> web.StreamResponse:
        async with self._backend_lists.turn(request):
            body = await json_list(self._fleet.entries())
        return await large_answer(request, body, "application/json")

    def _after_change(self, backend: Backend, before: AdminState) -> dict[str, object]:
        """The backend, and whether its pool can still serve. If not any more, that is logged."""
        peers = [each for each in self._plane.fleet.backends if each.pool == backend.pool]
        can_serve = any(each.can_serve for each in peers)
        taken_out = before is AdminState.READY and backend.admin_state is not AdminState.READY
        if taken_out and not can_serve:
            logger.warning("no backend of the pool can serve pool=%s", backend.pool)
        return {**self._fleet.described(backend), "pool_can_serve": can_serve}

    async def watch(self) -> None:
        """Remember what the page shows, until it is cancelled."""
        await self._history.watch(lambda: self._events.viewed)

    async def _past(self, request: web.Request) -> web.StreamResponse:
        told = self._history.told() | {"verdicts": list(self._verdicts.past)}
        return await large_answer(request, orjson.dumps(told), "application/json")

    async def _queue(self, request: web.Request) -> web.Response:
        return json_answer(await queue_listing(self._plane))

    async def _requests(self, request: web.Request) -> web.StreamResponse:
        async with self._request_lists.turn(request):
            try:
                told = await request_listing(self._plane, request.query)
            except BadQuery as error:
                return error_answer(400, "invalid_query", str(error))
            body = await json_list(told)
        return await large_answer(request, body, "application/json")

    async def _request(self, request: web.Request) -> web.StreamResponse:
        try:
            told = await requests_with_id(self._plane, request.match_info["id"], request.query)
        except BadQuery as error:
            return error_answer(400, "invalid_query", str(error))
        first = next(told, None)
        if first is None:
            message = (
                "No request with this id is kept here: it is long over, or of another process."
            )
            return error_answer(404, "unknown_request", message)
        return await large_answer(
            request, await json_list(chain((first,), told)), "application/json"
        )

    def _slos_told(self) -> list[dict[str, object]]:
        return slo_listing(self._plane.slos.evaluated(), self._plane.now())

    def _config_told(self) -> dict[str, object]:
        running = self._plane.configuration
        return as_json(Loaded(running.settings, running.origins))

    async def _reload_now(self, request: web.Request) -> web.Response:
        logger.info("a reload was asked for %s", _by(request[ASKER]))
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

    async def _restart(self, request: web.Request) -> web.Response:
        logger.info("a restart was asked for %s", _by(request[ASKER]))
        if self._handover is None:
            message = "Only a supervised process can be restarted: penstock serve --supervised."
            return error_answer(409, "not_supervised", message)
        why_not = await self._handover.restart()
        if why_not:
            return error_answer(409, "restart_failed", f"Not restarted: {why_not}.")
        return json_answer({"restarted": True})

    def _origin(self, backend: Backend) -> dict[str, object] | None:
        """Which source told of a backend, or that an operator added it, as JSON."""
        added = self._operators.origin(backend.name)
        return added or self._discovery.origin(backend.pool, backend.url)

    async def _add(self, request: web.Request) -> web.Response:
        if (refusal := self._may_not_add()) is not None:
            return refusal
        try:
            entry = orjson.loads(await request.read())
            settings = self._plane.settings
            added = self._operators.add(settings, entry, time())
        except orjson.JSONDecodeError:
            return error_answer(400, "invalid_backend", "The body is not JSON.")
        except CannotAdd as error:
            return error_answer(400, "invalid_backend", f"Not added: {error}.")
        logger.info("backend added name=%s %s", added.name, _by(request[ASKER]))
        await self._reload.refresh()
        for backend in self._plane.fleet.backends:
            if backend.name == added.name:
                return json_answer(self._fleet.described(backend), 201)
        return error_answer(503, "draining", "Too late: this proxy is shutting down.")

    async def _remove(self, request: web.Request) -> web.Response:
        if (refusal := self._may_not_add()) is not None:
            return refusal
        name = request.match_info["name"]
        if not self._operators.remove(name):
            message = (
                "No backend of this name was added by command. Drain one of the configuration, or"
                " remove it there; what a source has found, only the source removes."
            )
            return error_answer(404, "unknown_backend", message)
        logger.info("backend removed name=%s %s", name, _by(request[ASKER]))
        await self._reload.refresh()
        return json_answer({"removed": name})

    def _may_not_add(self) -> web.Response | None:
        """The answer if backends may not be added by command."""
        if self._plane.settings.admin.add_backends:
            return None
        message = "Set admin.add_backends to true, so that backends may be added by command."
        return error_answer(403, "forbidden", message)

    async def _set_state(self, request: web.Request) -> web.Response:
        name, state = request.match_info["name"], AdminState(request.match_info["state"])
        for backend in self._plane.fleet.backends:
            if backend.name == name:
                before = backend.admin_state
                self._operators.set_state(backend, state)
                if state is not before:
                    logger.info(
                        "backend set to %s name=%s was=%s %s",
                        *(state, name, before, _by(request[ASKER])),
                    )
                    if before is AdminState.MAINT:
                        self._monitor.resume(backend)
                if state is AdminState.READY and backend.reason == "worse":
                    logger.info("backend is wanted back name=%s %s", name, _by(request[ASKER]))
                    self._monitor.accepted(backend)
                    self._plane.newcomers.accepted(backend)
                return json_answer(self._after_change(backend, before))
        names = ", ".join(backend.name for backend in self._plane.fleet.backends[:20])
        return error_answer(404, "unknown_backend", f"No backend has this name; backends: {names}.")


def _json(told: Callable[[], object]) -> Handler:
    """Answers with what is so at that moment."""

    async def answer(request: web.Request) -> web.Response:
        return json_answer(told())

    return answer


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
    except Crowded:
        answer = error_answer(503, "too_many_lists", "Too many ask for this list at once.")
        answer.headers["Retry-After"] = "1"
        return answer
    except (web.HTTPException, asyncio.CancelledError, ConnectionError):  # the client has left
        raise
    except Exception as error:
        # So aiohttp calls a body that is read when its client has left.
        if request.transport is not None or not isinstance(error, RuntimeError):
            logger.exception("admin request failed method=%s", request.method)
        return error_answer(500, "internal_error", "An internal error of penstock; see its log.")


async def _index(request: web.Request) -> web.Response:
    return web.Response(text=INDEX)


def _by(asker: Asker) -> str:
    """Who has asked for a change, for the log."""
    return f"by={asker.kind} from={asker.address}"
