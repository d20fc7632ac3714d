"""The data plane's shared state: one object that connections and exchanges look at.

It holds what is one per process (fleet, gate, estimator, pools of connections,
limits, counters) and answers what needs no backend.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from random import Random
from secrets import token_hex
from time import time
from typing import Final

import orjson

from balancing.backend import Backend
from balancing.fleet import Fleet
from balancing.gate import Gate
from balancing.lease import Lease, Reason
from balancing.session_key import SessionKeys
from balancing.tokens import TokenEstimator
from conf.settings import PoolSettings, Settings
from proxy.access_log import AccessLog
from proxy.answer import Answer
from proxy.certificates import PLAIN, Certificates
from proxy.counting import Counting
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
from proxy.metrics import Metrics
from proxy.paths import LOCAL_PATHS, WEBSOCKET_PATHS, Paths, Route
from proxy.tenants import Tenants
from proxy.tls import TlsConnection
from proxy.upstream import ConnectionPool

logger = logging.getLogger(__name__)

_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
# Of a client's own id: with what is added it stays within what paths and memory take.
UPSTREAM_ID_BYTES_MAX: Final = 64
# Of every request, as a label, while there is only one priority.
PRIORITY: Final = "0"
# What is logged of a method: any other is a client's text.
_METHODS: Final = {
    method.encode(): method
    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT")
}
_JSON: Final[Headers] = [(b"content-type", b"application/json")]


class DataPlane:
    """What all client connections of one process share."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: Random,
        metrics: Metrics,
        access_log: AccessLog | None = None,
        counting: Counting | None = None,
        certificates: Certificates = PLAIN,
        on_failure: Callable[[Backend, BackendError], None] = lambda backend, error: None,
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.loop = loop
        self.metrics = metrics
        self.access_log = access_log
        self.counting = counting
        self.failed = on_failure
        self.estimator = TokenEstimator()
        self.gate = Gate(lambda: self.fleet, rng)
        self._session_pools = frozenset(
            pool.name for pool in settings.pools if pool.policy == "session"
        )
        # None: no pool asks for keys, so none is read.
        self.sessions = (
            SessionKeys(settings.affinity.headers, settings.affinity.body_fields)
            if self._session_pools
            else None
        )
        self.connections = {
            backend.name: ConnectionPool(
                loop,
                backend.url,
                connect_timeout_s=settings.timeouts.connect_s,
                tls=certificates.pools.get(backend.pool),
            )
            for backend in fleet.backends
        }
        self.authorizations: Mapping[str, bytes] = {
            pool.name: b"Bearer " + pool.api_key.get_secret_value().encode()
            for pool in settings.pools
            if pool.api_key is not None
        }
        self.certificates = certificates
        self.tenants = Tenants(settings.tenants)
        self.credentials = {
            pool.name: _credentials(pool, tenants=bool(settings.tenants)) for pool in settings.pools
        }
        self.clients: set[ClientConnection] = set()
        self.draining = False  # said to whoever asks; requests are still served
        self.closing = False  # the grace is over: no new requests
        self._paths = Paths(settings.paths)
        self._rng = rng
        self._bodies_bytes = 0

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
        )

    # Limits ---------------------------------------------------------------------------------

    def enter(self, client: ClientConnection) -> bool:
        """Count a client in; False when there are too many."""
        if len(self.clients) >= self.settings.limits.connections:
            return False
        self.clients.add(client)
        return True

    def leave(self, client: ClientConnection) -> None:
        self.clients.discard(client)

    def reserve(self, size_bytes: int) -> bool:
        """Count bytes of a body in; False when all bodies together are too large."""
        if self._bodies_bytes + size_bytes > self.settings.limits.bodies_bytes:
            return False
        self._bodies_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        self._bodies_bytes -= size_bytes
        assert self._bodies_bytes >= 0

    # Requests ----------------------------------------------------------------------------------

    def admit(self, head: RequestHead) -> Route | None:
        """Accept a request by its head, before its body is read; None: answered here.

        The place for whatever refuses by head alone. Raises a PenstockError.
        """
        if self.closing:
            raise Draining
        path = head.path
        if self.tenants and not self._open_to_all(head):
            head.tenant = self.tenants.of(head.headers)
        if path in WEBSOCKET_PATHS:
            raise UpgradeRequired
        limit_bytes = self.settings.limits.body_bytes
        if head.length is not None and head.length > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        if path in LOCAL_PATHS and head.method in (b"GET", b"HEAD"):
            return None
        route = self._paths.find(head.method, path)
        if route is None:
            if head.method == b"OPTIONS" and self.settings.listen.cors_origins:
                return None
            raise UnknownPath
        return route

    def _open_to_all(self, head: RequestHead) -> bool:
        """What load balancers, and browsers before they send a key, ask without one."""
        if head.method == b"OPTIONS":
            return bool(self.settings.listen.cors_origins)
        return head.path == b"/health" and head.method in (b"GET", b"HEAD")

    def answer_here(self, head: RequestHead, answer: Answer) -> None:
        """Answer what needs no backend: health, the list of models, CORS."""
        status, body, headers = 200, b"", _JSON
        if head.method == b"OPTIONS":
            status, headers = 204, []
        elif head.path == b"/v1/models":
            body = self._models()
        elif self.draining or not any(backend.can_serve for backend in self.fleet.backends):
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

    def _models(self) -> bytes:
        """The union of what fit backends serve, each model once."""
        cards: dict[str, bytes] = {}
        for backend in self.fleet.backends:
            if backend.fit and backend.models:
                for model, card in backend.models.items():
                    cards.setdefault(model, card)
        return b'{"object":"list","data":[%b]}' % b",".join(cards.values())

    def no_backend(self) -> NoBackendReady:
        """Nothing can serve: say when the next probe may have changed that."""
        return NoBackendReady(retry_after_s=self.settings.health.interval_s)

    def out_of_reach(self) -> ResponseOutOfReach:
        """Nobody who may hold a stored response is left to ask."""
        return ResponseOutOfReach(retry_after_s=self.settings.health.interval_s)

    def answer(self, transport: asyncio.Transport, head: RequestHead | None) -> Answer:
        """An answer to a request; `head` is None when it could not be read."""
        answer = Answer(transport, head, self._request_id(head), self.cors(head))
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
        if isinstance(error, Overloaded):
            self.metrics.shed.add(error.reason, PRIORITY)
        self._count(error.status)
        if self.access_log is not None:
            self.access_log.write(
                self.line(head, answer, peer, error.status) | {"error": error.code}
            )

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
        return "/v1/responses/{id}" if path.startswith(b"/v1/responses/") else None

    def line(
        self, head: RequestHead | None, answer: Answer, peer: bytes, status: int
    ) -> dict[str, object]:
        """What every access line begins with."""
        return {
            "time": int(time() * 1000) / 1000,
            "request_id": answer.request_id.decode("ascii"),
            "client": peer.decode("ascii"),
            "method": _METHODS.get(head.method) if head is not None else None,
            "path": self._logged_path(head.path) if head is not None else None,
            "tenant": (head.tenant or None) if head is not None else None,
            "status": status,
            "bytes": answer.body_bytes,
        }


def _credentials(pool: PoolSettings, *, tenants: bool) -> tuple[bool, bytes | None]:
    """Whether a pool's backends get the client's key, and the one that they get in its place."""
    whose = pool.forward_authorization or ("pool" if tenants else "client")
    own = b"Bearer " + pool.api_key.get_secret_value().encode() if pool.api_key else None
    return whose == "client", None if whose == "none" else own
