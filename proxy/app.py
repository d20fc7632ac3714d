"""The wiring: settings in, a running proxy out."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from random import Random, SystemRandom
from time import monotonic
from typing import Final

from aiohttp import web

from balancing.backend import Backend
from balancing.fleet import Fleet, Pool
from balancing.policies import POLICIES
from balancing.token_counter import TokenCounter
from conf.load import Loaded
from conf.settings import PoolSettings, Settings
from health.monitor import Monitor
from proxy.access_log import AccessLog
from proxy.admin import Admin
from proxy.certificates import PLAIN, Certificates
from proxy.counting import Counting
from proxy.drain import drain
from proxy.errors import BackendDraining, BackendError, ConnectionRefused, EngineDead
from proxy.log_lines import log_of_loop
from proxy.metrics import Metrics
from proxy.notify import notify
from proxy.plane import DataPlane
from proxy.upstream import keep_alive

logger = logging.getLogger(__name__)

BACKLOG: Final = 4_096
# What the kernel may hold of an answer that a client does not read.
SEND_BUFFER_BYTES: Final = 262_144
LAG_PERIOD_S: Final = 0.25
# Container objects made and not freed before the collector looks (CPython: 700).
GC_THRESHOLD: Final = 20_000
# aiohttp logs heads that it cannot read, tokens in them included; our own middleware logs faults.
_UNHEARD: Final = logging.getLogger("penstock.unheard")
_UNHEARD.disabled = True
# What one request is enough to know, as the reason of an ejection.
_CERTAIN: Final[dict[type[BackendError], str]] = {
    ConnectionRefused: "unreachable",
    BackendDraining: "draining",
    EngineDead: "failing",
}


class App:
    """One proxy process: data port, admin port, probes."""

    def __init__(
        self,
        loaded: Loaded,
        counter: TokenCounter | None = None,
        certificates: Certificates = PLAIN,
    ) -> None:
        """`counter` counts prompts exactly, where one is configured."""
        settings = loaded.settings
        self._loaded = loaded
        self._settings = settings
        self._servers: list[asyncio.Server] = []
        self._runner: web.AppRunner | None = None
        self._lag: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_of_loop)
        rng = Random(SystemRandom().getrandbits(64))
        metrics = Metrics([pool.name for pool in settings.pools])
        self._access_log = (
            AccessLog(loop, metrics, sys.stdout.fileno()) if settings.log.access else None
        )
        self._counting = Counting(loop, counter) if counter is not None else None
        self.plane = DataPlane(
            settings,
            fleet_of(settings),
            loop=loop,
            rng=rng,
            metrics=metrics,
            access_log=self._access_log,
            counting=self._counting,
            certificates=certificates,
            on_failure=self._failed,
        )
        self.monitor = Monitor(
            self.plane.fleet, settings.health, self.plane.authorizations, rng, certificates.pools
        )
        self.port = 0
        self.admin_port = 0

    async def start(self) -> None:
        """Listen on both ports and begin to probe. Raises OSError when a port is taken."""
        listen, admin = self._settings.listen, self._settings.admin
        loop = self.plane.loop
        sock = _listening_socket(listen.host, listen.port, reuse_port=listen.reuse_port)
        self._servers.append(
            await loop.create_server(self.plane.client, sock=sock, backlog=BACKLOG)
        )
        self.port = sock.getsockname()[1]
        application = Admin(self.plane, self.monitor, self._loaded).application()
        self._runner = web.AppRunner(
            application, access_log=None, logger=_UNHEARD, shutdown_timeout=1.0
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, admin.host, admin.port).start()
        except OSError as error:
            raise _named(error, "admin", admin.host, admin.port) from None
        self.admin_port = self._runner.addresses[0][1]
        await self.monitor.start()
        # What lives as long as the process is not the collector's business, and requests
        # leave no cycles behind: looking rarely saves 6 % of the CPU of a small request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        self._lag = loop.create_task(self._measure_lag())

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; a second signal ends the drain."""
        loop = self.plane.loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        await self._stop.wait()
        notify("STOPPING=1", "STATUS=draining")
        await drain(self.plane, self._servers[0], self._settings.drain, self._hurry)
        await self.close()

    async def close(self) -> None:
        """Close both ports and everything behind them."""
        for server in self._servers:
            server.close()
        for client in list(self.plane.clients):
            client.break_off()
        await self.monitor.stop()
        if self._lag is not None:
            self._lag.cancel()
        for connections in self.plane.connections.values():
            connections.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._counting is not None:
            self._counting.close()
        if self._access_log is not None:
            self._access_log.close()

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _failed(self, backend: Backend, error: BackendError) -> None:
        certain = _CERTAIN.get(type(error))
        if certain is not None:
            self.monitor.certain(backend, certain)
        elif error.suspicious:
            self.monitor.request_failed(backend)

    async def _measure_lag(self) -> None:
        while True:
            due_s = monotonic() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self.plane.metrics.loop_lag_s.observe(max(0.0, monotonic() - due_s))


def fleet_of(settings: Settings) -> Fleet:
    """The fleet that a configuration describes, every backend still `starting`."""
    return Fleet(tuple(_pool_of(pool) for pool in settings.pools))


def _pool_of(pool: PoolSettings) -> Pool:
    backends = tuple(
        Backend(each.name, each.url.rstrip("/"), pool.name, each.weight) for each in pool.backends
    )
    policy = POLICIES[pool.policy](backends)
    return Pool(pool.name, backends, policy, frozenset(pool.models))


def _listening_socket(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """Accepted sockets inherit its options, which saves the calls per connection."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise OSError(
            None, f"cannot listen on {host}:{port} (listen.host): {error.strerror}"
        ) from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _named(error, "listen", host, port) from None
    return sock


def _named(error: OSError, section: str, host: str, port: int) -> OSError:
    """The error, telling which of the two ports it is about."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(error.errno, f"cannot listen on {host}:{port} ({section}.port): {reason}")
