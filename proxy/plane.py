"""The data plane's shared state: one object that connections and exchanges look at.

It holds what is one per process (fleet, gate, estimator, pools of connections,
limits, counters) and answers what needs no backend.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from math import inf
from random import Random
from secrets import token_hex
from time import monotonic, time
from typing import Final, cast

import orjson

from balancing.accusers import Cause
from balancing.ask import Ask
from balancing.backend import Backend
from balancing.deaths import Deaths
from balancing.gate import Gate
from balancing.lease import Lease, Reason
from balancing.outline import Steps
from balancing.output_length import OutputLength
from balancing.peek import reading, unread
from balancing.poison import Poison
from balancing.tokens import TokenEstimator
from proxy.access_log import AccessLog
from proxy.answer import Answer
from proxy.configuration import Configuration
from proxy.errors import (
    BackendError,
    BodyTooLarge,
    Draining,
    NoBackendReady,
    Overloaded,
    PenstockError,
    ResponseOutOfReach,
    UnknownPath,
    UpgradeRequired,
)
from proxy.heads import Headers, RequestHead
from proxy.listener import ClientConnection
from proxy.long_heads import LongHeads
from proxy.long_reads import TURN_S
from proxy.metrics import Metrics
from proxy.model_list import is_of_models, models_told
from proxy.overload import Overload
from proxy.paths import LOCAL_PATHS, WEBSOCKET_PATHS, Route
from proxy.room import NEAR, Bodies, Seats
from proxy.rota import Rota
from proxy.tls import TlsConnection

logger = logging.getLogger(__name__)

_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
# Of a client's own id: with what is added it stays within what paths and memory take.
UPSTREAM_ID_BYTES_MAX: Final = 64
# Of every request, as a label, while there is only one priority.
PRIORITY: Final = "0"
# Clients beyond limits.connections whose heads are read all the same: so many are told in their
# API's own shape, and `/health` is answered; what comes on top is turned away unread.
EXCESS_MAX: Final = 64
# A limit that other requests' ends make room under: soon.
ROOM_S: Final = 1.0
EVERYBODY: Final = 2**31
# So long after the process did not run, what ends badly is nobody's fault: connections that gave
# up waiting for it are found in the first moments.
EXCUSED_S: Final = 5.0
# Between two attempts to make seats: those who gave way need a turn of the loop to be gone.
MAKE_SEATS_S: Final = 0.02
# What is logged of a method: any other is a client's text.
_METHODS: Final = {
    method.encode(): method
    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT")
}
_JSON: Final[Headers] = [(b"content-type", b"application/json")]


def _nothing(backend: Backend, error: BackendError, cause: Cause) -> None:
    """Where nobody watches the backends."""


class DataPlane:
    """What all client connections of one process share."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: Random,
        metrics: Metrics,
        on_failure: Callable[[Backend, BackendError, Cause], None] = _nothing,
    ) -> None:
        self.loop = loop
        self.metrics = metrics
        self.access_log: AccessLog | None = None
        self.failed = on_failure
        self.estimator = TokenEstimator(rng.getrandbits(64))
        self.outputs = OutputLength()
        self.gate = Gate(lambda: self.fleet, rng)
        self.deaths = Deaths()
        self.poison = Poison()
        self.rota = Rota(loop, TURN_S)
        self.clients: set[ClientConnection] = set()
        self._seated = 0
        self.clients_fit = EVERYBODY  # as many as there are descriptors for
        self.overload = Overload()
        self.draining = False  # said to whoever asks; requests are still served
        self.closing = False  # the grace is over: nobody new is accepted
        self._rng = rng
        self._woke_s = -inf  # when the process went on after it had not run
        self.bodies = Bodies()
        self.long_heads = LongHeads()
        self._seats = Seats()
        self._cleared_s = 0.0
        self.use(configuration)

    def use(self, configuration: Configuration) -> None:
        """Serve by it from the next request on. One step of the loop: none sees half of it."""
        self.metrics.add_pools(pool.name for pool in configuration.fleet.pools)
        configuration.settle()
        self.configuration = configuration
        # What requests look at, one attribute away.
        self.settings = configuration.settings
        self.fleet = configuration.fleet
        self.connections = configuration.connections
        self.certificates = configuration.certificates
        self.credentials = configuration.credentials
        self.tenants = configuration.tenants
        self._seats.keyed = bool(self.tenants)
        self.sessions = configuration.sessions
        self.prefixes = configuration.prefixes
        self.counting = configuration.counting
        self._session_pools = configuration.session_pools
        self._paths = configuration.paths

    def client(self) -> asyncio.Protocol:
        """The protocol of a new connection to the data port."""
        client = ClientConnection(self)
        context = self.certificates.listener
        if context is None:
            return client
        return TlsConnection(
            self.loop,
            context,
            client,
            handshake_s=self.settings.timeouts.client_head_s,
            on_failure=self.metrics.handshake_failed,
            rota=self.rota,
        )

    def slept(self, time_s: float) -> None:
        """The process did not run for so long: nobody is to be blamed for its silence."""
        self._woke_s = monotonic()
        for client in self.clients:
            client.slept(time_s)

    def was_asleep(self, began_s: float, now_s: float) -> bool:
        """Whether what began then and ends now may end so because the process did not run."""
        return began_s < self._woke_s and now_s - self._woke_s < EXCUSED_S

    # Limits ---------------------------------------------------------------------------------

    def enter(self, client: ClientConnection) -> bool:
        """Count a client in; False when not even its head is to be read."""
        full = len(self.clients) - self._seated >= EXCESS_MAX
        if full and not self._may_sit(client) and not self._takes_place(client):
            self._make_seats(client)
            return False
        self.clients.add(client)
        return True

    def seat(self, client: ClientConnection) -> bool:
        """Give a client that has entered one of the places of those that are served."""
        if not self._may_sit(client) and not (client.proven and self._takes_place(client)):
            self._make_seats(client)
            return False
        self._seated += 1
        return True

    def _takes_place(self, client: ClientConnection) -> bool:
        """Where keys are asked for: another gives its place to the client at once."""
        if not self.tenants or (client.proven and self._fills(client)):
            return False
        victim = self._seats.taken(self.clients, self._seats_in_all, client)
        if victim is None:
            return False
        self.clients.discard(cast(ClientConnection, victim))
        self._seated -= not victim.excess
        victim.excess = True
        victim.give_way()
        return True

    def _make_seats(self, wanting: ClientConnection) -> None:
        """Let those who ask for nothing make room, a moment later; looking takes a look at all."""
        if self.tenants and not wanting.proven:
            return
        now_s = monotonic()
        if now_s - self._cleared_s >= MAKE_SEATS_S:
            self._cleared_s = now_s
            self._seats.clear(self.clients, self._seats_in_all, wanting)

    def leave(self, client: ClientConnection, *, seated: bool) -> None:
        self.clients.discard(client)
        self._seated -= seated
        assert 0 <= self._seated <= len(self.clients)

    def _may_sit(self, client: ClientConnection) -> bool:
        """Whether a place is left; the last ones are for whoever has less than an even share."""
        seats = self._seats_in_all
        if self._seated <= NEAR * seats:
            return True
        return self._seated < seats and not self._fills(client)

    def _fills(self, client: ClientConnection) -> bool:
        name = self._seats.name_of(client)
        return self._seats.fills(name, self.clients, self._seats_in_all)

    @property
    def _seats_in_all(self) -> int:
        return min(self.settings.limits.connections, self.clients_fit)

    def reserve(self, size_bytes: int, client: ClientConnection) -> bool:
        """Count bytes of a body in; False when there is no memory for them."""
        if self.overload.reason == "memory":
            return False
        return self.bodies.take(size_bytes, self.settings.limits.bodies_bytes, client)

    def release(self, client: ClientConnection) -> None:
        """What was counted of a client's body, or of its head, is held no more."""
        held = self.long_heads if client in self.long_heads.receiving else self.bodies
        held.receiving.pop(client, None)
        held.release(client.body_bytes, client)
        client.body_bytes = 0

    def overloaded(self, reason: str, message: str | None = None) -> Overloaded:
        """A limit of the process's own is reached: count it, and say when to try again.

        Times are spread by half, or all who were refused would come back at once.
        """
        self.metrics.shed.add(reason, PRIORITY)
        spread = 1.0 - self._rng.random() / 2
        if reason != self.overload.reason:
            return Overloaded(reason, message, retry_after_s=ROOM_S * spread)
        now_s = monotonic()
        return Overloaded(
            reason,
            message,
            retry_after_s=self.overload.hint_s(now_s) * spread,
            hopeless=self.overload.hopeless(now_s),
        )

    def no_room(self) -> Overloaded:
        """The body that is being read cannot be held."""
        if self.overload.reason == "memory":
            return self.overloaded("memory")
        message = "The bodies of all requests together are too large; retry."
        return self.overloaded("bodies", message)

    # Requests ----------------------------------------------------------------------------------

    def admit(self, head: RequestHead, client: ClientConnection) -> Route | None:
        """Accept a request by its head, before its body is read; None: answered here.

        The place for whatever refuses by head alone. Raises a PenstockError.
        """
        path = head.path
        self._identify(head, client)
        if path in WEBSOCKET_PATHS:
            raise UpgradeRequired
        limit_bytes = self.settings.limits.body_bytes
        if head.length is not None and head.length > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        if (path in LOCAL_PATHS or is_of_models(path)) and head.method in (b"GET", b"HEAD"):
            return None
        route = self._paths.find(head.method, path)
        if route is None:
            if head.method == b"OPTIONS" and self.settings.listen.cors_origins:
                return None
            raise UnknownPath
        if client.excess:
            raise self.overloaded("connections", "Too many connections are open; retry.")
        if self.overload.reason:
            raise self.overloaded(self.overload.reason)
        self._check_room(head, client)
        return route

    def _identify(self, head: RequestHead, client: ClientConnection) -> None:
        """Whose request it is; and a place, if its client has none. Raises Unauthorized."""
        if self.tenants and not self._open_to_all(head):
            head.tenant = client.tenant = self.tenants.of(head.headers)
            client.proven = True
        if client.excess:  # others may have left meanwhile, or give way to a key
            client.excess = not self.seat(client)
            if client.excess:
                head.keep_alive = False

    def _check_room(self, head: RequestHead, client: ClientConnection) -> None:
        """Whether there is room for the body, and for one more request of whose it is."""
        limit_bytes = self.settings.limits.bodies_bytes
        if head.length and not self.bodies.fits(head.length, limit_bytes, client):
            raise self.no_room()
        seats = self._seats_in_all
        if self._seated > NEAR * seats and self._seats.crowds(client.holder, self.clients, seats):
            raise self.overloaded("connections", "Too many requests of yours are under way; retry.")

    def route(self, method: bytes, path: bytes) -> Route | None:
        """How a path is served; None when it is not."""
        return self._paths.find(method, path)

    def _open_to_all(self, head: RequestHead) -> bool:
        """What load balancers, and browsers before they send a key, ask without one."""
        if head.method == b"OPTIONS":
            return bool(self.settings.listen.cors_origins)
        return head.path == b"/health" and head.method in (b"GET", b"HEAD")

    def answer_here(self, head: RequestHead, answer: Answer) -> None:
        """Answer what needs no backend: health, models, CORS. Raises a PenstockError."""
        status, body, headers = 200, b"", _JSON
        serves = any(backend.can_serve for backend in self.fleet.backends)
        if head.method == b"OPTIONS":
            status, headers = 204, []
        elif is_of_models(head.path):
            if not serves:
                raise self.no_backend()
            body = models_told(head.path, self.fleet.backends)
        elif self.draining or not serves:
            error = Draining() if self.draining else self.no_backend()
            status, body = error.status, orjson.dumps({"status": error.code})
            headers = [*headers, *error.headers]
        else:
            body = b'{"status":"ok"}'
        answer.whole(status, headers, body)
        self._count(status)

    def cors(self, head: RequestHead | None) -> Headers:
        """CORS headers for a browser's origin that the configuration allows."""
        origins = self.settings.listen.cors_origins
        if not origins or head is None:
            return []
        origin = head.get(b"origin")
        if origin is None or not ("*" in origins or origin.decode("latin-1") in origins):
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (
                b"access-control-allow-headers",
                head.get(b"access-control-request-headers") or b"authorization, content-type",
            ),
            (b"access-control-max-age", b"600"),
            (b"vary", b"Origin"),
        ]

    def no_backend(self) -> NoBackendReady:
        """Nothing can serve: say when the next probe may have changed that."""
        return NoBackendReady(retry_after_s=self.settings.health.interval_s)

    def out_of_reach(self) -> ResponseOutOfReach:
        """Nobody who may hold a stored response is left to ask."""
        return ResponseOutOfReach(retry_after_s=self.settings.health.interval_s)

    def answer(self, transport: asyncio.Transport, head: RequestHead | None) -> Answer:
        """An answer to a request; `head` is None when it could not be read."""
        request_id, headers = self._request_id(head), self.cors(head)
        if head is not None and head.path.startswith(b"/v1/messages"):
            headers = [*headers, (b"request-id", request_id)]  # where Anthropic's SDK looks
        answer = Answer(transport, head, request_id, headers)
        answer.keep_alive = answer.keep_alive and not self.draining
        return answer

    def _request_id(self, head: RequestHead | None) -> bytes:
        """The client's own id when it is short and printable, else a new one."""
        given = head.get(b"x-request-id") if head is not None else None
        if given and _REQUEST_ID.fullmatch(given):
            return given
        return b"%032x" % self._rng.getrandbits(128)

    def request_id_upstream(self, request_id: bytes) -> bytes:
        """The id that a backend is given: vLLM makes that of a stored response of it.

        Among tenants nobody may guess, or choose, the id of another's.
        """
        if not self.tenants:
            return request_id
        return request_id[:UPSTREAM_ID_BYTES_MAX] + b"-" + token_hex(8).encode()

    # Accounts ------------------------------------------------------------------------------------

    def refused(
        self, head: RequestHead | None, answer: Answer, error: PenstockError, peer: bytes
    ) -> None:
        """Count and log a request that no exchange was made for."""
        self._count(error.status)
        if self.access_log is not None:
            self.access_log.write(
                self.line(head, answer, peer, error.status) | {"error": error.code}
            )

    def ask_of(
        self, path: str, route: Route, headers: Headers, body: bytes, tenant: str, party: str = ""
    ) -> Steps[Ask]:
        """What a request of a tenant's, or of an address's, wants. Raises MalformedAsk."""
        if route.first_pool:
            return unread(path, body, tenant, tenant or party)
        return reading(
            path,
            headers,
            body,
            self.estimator,
            generates=route.generates,
            engine=route.engine,
            streams=route.streams,
            sessions=self.sessions,
            tenant=tenant,
            client=tenant or party,
            prefixes=self.prefixes,
            outputs=self.outputs,
        )

    def origin(self, lease: Lease, attempts: int) -> Headers:
        """What an answer's head says of where it comes from."""
        tried = (b"x-penstock-attempts", b"%d" % attempts)
        reason = (b"x-penstock-reason", lease.reason.encode())
        if not self.settings.listen.backend_header:
            return [tried, reason]
        return [(b"x-penstock-backend", lease.backend.name.encode()), tried, reason]

    def placed(self, lease: Lease) -> None:
        """Count whether a request was served where its session, or its response, belongs."""
        if lease.reason is Reason.AFFINITY:
            self.metrics.affinity.add("hit")
        elif lease.reason is Reason.SPILL:
            self.metrics.affinity.add("spill")
        elif lease.backend.pool in self._session_pools:
            self.metrics.affinity.add("miss")

    def _count(self, status: int) -> None:
        requests = self.metrics.pools[""].requests
        requests["", status] = requests.get(("", status), 0) + 1

    def _logged_path(self, path: bytes) -> str | None:
        """A path that is served; any other is a client's text, and may hold anything."""
        if self._paths.lists(path):
            return path.decode("ascii")
        if path.startswith(b"/v1/models/"):
            return "/v1/models/{id}"
        return "/v1/responses/{id}" if path.startswith(b"/v1/responses/") else None

    def line(
        self, head: RequestHead | None, answer: Answer, peer: bytes, status: int
    ) -> dict[str, object]:
        """What every access line begins with."""
        return {
            "time": int(time() * 1000) / 1000,
            "request_id": answer.request_id.decode("ascii"),
            "client": peer.decode("ascii"),
            "method": _METHODS.get(answer.method),
            "path": self._logged_path(head.path) if head is not None else None,
            "tenant": (head.tenant or None) if head is not None else None,
            "status": status,
            "bytes": answer.body_bytes,
        }
