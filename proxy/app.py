"""The wiring: settings in, a running proxy out."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from random import Random, SystemRandom
from typing import Final

from aiohttp import web

from balancing.accusers import Cause
from balancing.backend import Backend
from balancing.token_counter import TokenCounter
from conf.load import Loaded
from health.monitor import Monitor
from proxy import descriptors, heap
from proxy.access_log import AccessLog
from proxy.admin import Admin
from proxy.configuration import Configuration, configure, draft
from proxy.drain import drain
from proxy.errors import (
    AnswerBare,
    BackendDraining,
    BackendError,
    BackendGone,
    BackendRefusing,
    ConnectionRefused,
    EngineDead,
    KeyRefused,
)
from proxy.host import Names
from proxy.inherited import inherited
from proxy.log_lines import log_of_loop
from proxy.metrics import Metrics
from proxy.notify import notify
from proxy.plane import DataPlane
from proxy.pressure import Pressure, group_limit_bytes
from proxy.pulse import Pulse
from proxy.reload import Reload
from proxy.retirement import Retirement
from proxy.sockets import keep_alive
from proxy.source import Source
from proxy.tls import PLAIN, Certificates
from proxy.visitors import BACKLOG as VISITORS_BACKLOG
from proxy.visitors import Visitors

logger = logging.getLogger(__name__)

BACKLOG: Final = 4_096
# What the kernel may hold of an answer that a client does not read.
SEND_BUFFER_BYTES: Final = 262_144
# How long an inherited socket waits for the first looks at the backends: above two probes.
FIRST_LOOKS_S: Final = 5.0
# Container objects made and not freed before the collector looks (CPython: 700).
GC_THRESHOLD: Final = 20_000
# aiohttp logs heads that it cannot read, tokens in them included; our own middleware logs faults.
_UNHEARD: Final = logging.getLogger("penstock.unheard")
_UNHEARD.disabled = True
# What one request is enough to know, as the reason of an ejection.
_CERTAIN: Final[dict[type[BackendError], str]] = {
    ConnectionRefused: "unreachable",
    BackendGone: "unreachable",
    BackendDraining: "draining",
    EngineDead: "failing",
}


class App:
    """One proxy process: data port, admin port, probes."""

    def __init__(
        self,
        source: Source,
        loaded: Loaded,
        counter: TokenCounter | None = None,
        certificates: Certificates = PLAIN,
        names: Names | None = None,
    ) -> None:
        """`loaded` came from `source`, which a reload reads again.

        `counter` counts prompts exactly, where one is configured; `names` finds the
        addresses of backends.
        """
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._admin_server: asyncio.Server | None = None
        self._pressure: asyncio.Task[None] | None = None
        self._access_log: AccessLog | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_of_loop)
        rng = Random(SystemRandom().getrandbits(64))
        metrics = Metrics([])
        names = names or Names()
        new = draft(loaded.settings, loaded.origins, counter, certificates)
        configuration = configure(new, loop, names)
        self.plane = DataPlane(
            configuration, loop=loop, rng=rng, metrics=metrics, on_failure=self._failed
        )
        self.monitor = Monitor(rng)
        self._pulse = Pulse(loop, self._slept, self._worked)
        self._retirement = Retirement(metrics, lambda: self.plane.fleet)
        self._reload = Reload(source, self.plane, self._retirement, self._use, names)
        self._reload.warn(loaded.warnings)
        self._reloads: set[asyncio.Task[None]] = set()
        self.host = loaded.settings.listen.host
        self.port = 0
        self.admin_port = 0

    async def start(self) -> None:
        """Listen on both ports and begin to probe.

        Raises OSError when a port is taken or there are too few descriptors.
        An inherited socket is accepted from once the backends were looked at: until
        then connections wait in it, or are taken by the process before this one.
        """
        listen = self.plane.settings.listen
        self._fit_clients()
        self._use(self.plane.configuration)
        sock = inherited("data")
        held = sock is not None
        if sock is None:
            sock = _listening_socket(listen.host, listen.port, reuse_port=listen.reuse_port)
            await self._accept(sock)
        self.host, self.port = sock.getsockname()[:2]
        await self._start_admin()
        if held:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LOOKS_S):
                    await self.monitor.started.wait()
            await self._accept(sock)
        # What lives as long as the process is not the collector's business, and requests
        # leave no cycles behind: looking rarely saves 6 % of the CPU of a small request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        heap.keep_pages()
        self._pulse.start()
        self._pressure = self.plane.loop.create_task(
            Pressure(self.plane, group_limit_bytes()).watch()
        )

    def take_signals(self) -> None:
        """From now on signals mean what `run` says; before whoever is told that we are ready."""
        loop = self.plane.loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._reload_by_signal)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; a second one ends that. SIGHUP reloads."""
        self._tell_of_descriptors()
        await self._stop.wait()
        notify("STOPPING=1", "STATUS=draining")
        assert self._server is not None
        await drain(self.plane, self._server, self.plane.settings.drain, self._hurry)
        await self.close()

    async def close(self) -> None:
        """Close both ports and everything behind them."""
        if self._server is not None:
            self._server.close()
        for client in list(self.plane.clients):
            client.break_off()
        await self.monitor.stop()
        self._pulse.stop()
        if self._pressure is not None:
            self._pressure.cancel()
        self._retirement.close()
        for connections in self.plane.connections.values():
            connections.close()
        if self._admin_server is not None:
            self._admin_server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self.plane.counting is not None:
            self.plane.counting.close()
        if self._access_log is not None:
            self._access_log.close()

    def _fit_clients(self) -> None:
        self.plane.clients_fit = descriptors.secure(
            self.plane.settings.limits.connections, len(self.plane.fleet.backends)
        )

    def _tell_of_descriptors(self) -> None:
        descriptors.warn(
            self.plane.settings.limits.connections,
            len(self.plane.fleet.backends),
            self.plane.clients_fit,
        )

    async def _accept(self, sock: socket.socket) -> None:
        # Accepted sockets inherit its options, which saves the calls per connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        sock.setblocking(False)
        self._server = await self.plane.loop.create_server(
            self.plane.client, sock=sock, backlog=BACKLOG
        )

    async def _start_admin(self) -> None:
        admin = self.plane.settings.admin
        loop = self.plane.loop

        def handler() -> asyncio.Protocol:
            assert runner.server is not None
            return runner.server()

        visitors = Visitors(handler, loop.call_later)
        administration = Admin(self.plane, self.monitor, self._reload, self._retirement, visitors)
        application = administration.application()
        self._runner = runner = web.AppRunner(
            application, access_log=None, logger=_UNHEARD, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            self._admin_server = await loop.create_server(
                visitors, admin.host, admin.port, backlog=VISITORS_BACKLOG
            )
        except OSError as error:
            raise _named(error, "admin", admin.host, admin.port) from None
        self.admin_port = self._admin_server.sockets[0].getsockname()[1]

    def _use(self, configuration: Configuration) -> None:
        """Put a configuration in use, at the start and by a reload."""
        settings = configuration.settings
        if settings.log.level != self.plane.settings.log.level:
            logging.getLogger().setLevel(settings.log.level.upper())
        limits = self.plane.settings.limits
        self.plane.use(configuration)
        if settings.limits != limits:
            with contextlib.suppress(OSError):  # too few for anybody: then as before
                self._fit_clients()
            self._tell_of_descriptors()
        hosts = {name: pool.host for name, pool in configuration.connections.items()}
        self.monitor.use(
            configuration.fleet,
            settings.health,
            configuration.authorizations,
            hosts,
            configuration.certificates.pools,
        )
        if settings.log.access and self._access_log is None:
            self._access_log = AccessLog(self.plane.loop, self.plane.metrics, sys.stdout.fileno())
        self.plane.access_log = self._access_log if settings.log.access else None

    def _reload_by_signal(self) -> None:
        reload = self.plane.loop.create_task(self._reload.by_signal())
        self._reloads.add(reload)  # the loop itself keeps no task alive
        reload.add_done_callback(self._reloads.discard)

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _slept(self, time_s: float) -> None:
        logger.warning("the process was not running, all deadlines are later slept_s=%.1f", time_s)
        self.plane.slept(time_s)
        self.monitor.slept(time_s)

    def _worked(self, time_s: float) -> None:
        logger.warning("the loop was busy, all answers are later busy_s=%.1f", time_s)
        self.monitor.slept(time_s)  # no probe could be heard; clients' deadlines stay

    def _failed(self, backend: Backend, error: BackendError, cause: Cause) -> None:
        certain = _CERTAIN.get(type(error))
        if certain is not None:
            self.monitor.certain(backend, certain)
        elif isinstance(error, BackendRefusing):
            self.monitor.refused(backend, key=isinstance(error, KeyRefused))
        elif error.suspicious or isinstance(error, AnswerBare):
            self.monitor.request_failed(backend, cause)


def _listening_socket(host: str, port: int, *, reuse_port: bool) -> socket.socket:
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
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _named(error, "listen", host, port) from None
    return sock


def _named(error: OSError, section: str, host: str, port: int) -> OSError:
    """The error, telling which of the two ports it is about."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(error.errno, f"cannot listen on {host}:{port} ({section}.port): {reason}")
