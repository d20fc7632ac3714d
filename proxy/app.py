"""The wiring: from settings to a running proxy."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from time import time
from typing import Final

from aiohttp import web

from penstock.balancing.backend import Backend
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.token_counter import TokenCounter
from penstock.conf.load import Loaded
from penstock.health.monitor import Monitor
from penstock.health.probes import Outcome
from penstock.proxy.admin.server import Admin
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.admin.visitors import Door, Visitors
from penstock.proxy.data.account import count_all
from penstock.proxy.data.configuration import Configuration, configure, draft
from penstock.proxy.data.memory import Memory
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.port import Port
from penstock.proxy.discovery.discovery import Discovery
from penstock.proxy.discovery.operators import Operators
from penstock.proxy.errors.backend import (
    AnswerBare,
    BackendDraining,
    BackendError,
    BackendGone,
    BackendRefusing,
    ConnectionRefused,
    EngineDead,
    KeyRefused,
)
from penstock.proxy.process import descriptors
from penstock.proxy.process.drain import drain
from penstock.proxy.process.gpu_exporters import GpuExporters
from penstock.proxy.process.handover import handover
from penstock.proxy.process.listening import inherited, is_meant, listening_socket, named
from penstock.proxy.process.notify import notify
from penstock.proxy.process.pressure import (
    Pressure,
    group_limit_bytes,
    keep_pages,
    resident_bytes,
)
from penstock.proxy.process.state_files import JsonFile, Ledger
from penstock.proxy.reload.reload import Reload
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.reload.source import ConfigWatch, Source
from penstock.proxy.telemetry.access_log import AccessLog
from penstock.proxy.telemetry.log_lines import log_of_loop
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.tracing.exporter import Exporter
from penstock.proxy.wire.certificates import PLAIN, Certificates
from penstock.proxy.wire.deadline import Clock
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pulse import Pulse
from penstock.proxy.wire.sockets import keep_alive

logger = logging.getLogger(__name__)

# How much of an answer the kernel may hold for a client that does not read.
SEND_BUFFER_BYTES: Final = 262_144
# The longest wait for the first probes: of clients in an inherited socket (two probes take less),
# and of a process that another one serves for meanwhile.
FIRST_LOOKS_S: Final = 5.0
TAKE_OVER_LOOKS_S: Final = 30.0
# Then that process waits for a backend of each pool that can serve: the other one may have some.
TAKE_OVER_SERVES_S: Final = 10.0
SERVES_POLL_S: Final = 0.1
# How long the start waits for what sources of backends tell.
FOUND_S: Final = 2.0
# Container objects that are made and not freed before the collector runs (CPython: 700).
GC_THRESHOLD: Final = 20_000
# Failures that eject a backend after one request, with the reason of the ejection.
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
        """`loaded` came from `source`. A reload reads `source` again.

        `counter` counts prompts exactly, if one is configured. `names` resolves the host names
        of backends.
        """
        self._runner: web.AppRunner | None = None
        self._door: Door | None = None
        self._tasks: list[asyncio.Task[None]] = []  # that end when it closes
        self._ledger: Ledger | None = None
        self._writing: asyncio.Task[None] | None = None
        self._state_files: list[tuple[JsonFile, asyncio.Task[None]]] = []
        self._access_log: AccessLog | None = None
        self._handover = handover()
        self._told_to_stop = False  # by a signal; a process that has handed over drains already
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_of_loop)
        rng = Random(SystemRandom().getrandbits(64))
        clock = self._clock = Clock()
        metrics = Metrics([], clock.now)
        names = names or Names()
        new = draft(loaded.settings, loaded.origins, counter, certificates)
        threads = HandshakeThreads(loop)
        configuration = configure(new, loop, names, now=clock.now, threads=threads)
        self.plane = DataPlane(
            configuration,
            loop=loop,
            rng=rng,
            metrics=metrics,
            on_failure=self._failed,
            load_adapter=self._load_adapter,
            now=clock.now,
            memory=Memory(group_limit_bytes(), resident_bytes()),
        )
        metrics.count_ended = partial(count_all, self.plane)
        self._verdicts = Verdicts(self.plane)
        self._port = Port(self.plane)
        self.monitor = Monitor(rng, self.plane.newcomers.arrived, clock.now)
        self.plane.newcomers.take_out = self.monitor.worse
        self._exporters = GpuExporters(loop, rng, clock.now)
        self._spans = Exporter(loop, metrics, rng)
        self._pulse = Pulse(loop, self._slept, self._worked)
        self._retirement = Retirement(metrics, lambda: self.plane.fleet)
        self._discovery = Discovery(clock.now, self._serving)
        self._operators = Operators()
        metrics.discovered = self._discovery.ages
        self._reload = Reload(
            *(source, self.plane, self._retirement, self._use, names, threads),
            merged=self._discovery.merged,
            operators=self._operators,
        )
        self._watch = ConfigWatch(source.path, self._reload.by_signal)
        self._reload.warn(loaded.warnings)
        self._reloads: set[asyncio.Task[None]] = set()
        self.host = loaded.settings.listen.host
        self.port = 0
        self.admin_port = 0

    async def start(self) -> None:
        """Listen on both ports and begin to probe.

        Raises OSError when a port is taken or there are too few descriptors. Connections of an
        inherited socket are accepted after every backend was probed once. Until then they wait
        in the socket, or the previous process takes them.
        """
        self._fit_clients()
        self._use(self.plane.configuration)
        taking_over = self._handover is not None
        found_s = TAKE_OVER_LOOKS_S if taking_over else FOUND_S
        await self._discovery.start(self._reload.refresh, found_s)
        self.plane.metrics.reloaded(time())
        if self._handover is None:
            sock = inherited("data")
            looks = sock is not None
        else:
            sock = await self._take_over()
            looks = False
        self._open_files()
        await self._reload.refresh()  # with what operators had ordered
        if sock is None:
            sock = listening_socket(self.plane.settings.listen)
        self.host, self.port = sock.getsockname()[:2]
        if not looks:
            await self._accept(sock)
        await self._start_admin()
        if looks:
            await self._first_looks(FIRST_LOOKS_S)
            await self._accept(sock)
        if self._handover is not None:
            self._handover.listens(sock)
            self._tasks.append(self.plane.loop.create_task(self._hand_over()))
        # Objects that live as long as the process need no collection, and requests leave no
        # cycles. Collecting rarely saves 6 % of the CPU of a small request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        keep_pages()
        self._pulse.start()
        self._tasks.append(self.plane.loop.create_task(Pressure(self.plane).watch()))
        self._tasks.append(self.plane.loop.create_task(self._verdicts.watch()))

    async def _first_looks(self, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.monitor.started.wait()

    async def _each_pool_serves(self, within_s: float) -> None:
        """A first probe may fail while the machine is busy with two processes."""
        waits_until_s = self.plane.now() + within_s
        pools = [pool for pool in self.plane.fleet.pools if pool.backends]
        while self.plane.now() < waits_until_s:
            if all(any(each.can_serve for each in pool.backends) for pool in pools):
                return
            await asyncio.sleep(SERVES_POLL_S)

    async def _take_over(self) -> socket.socket | None:
        """Wait until the present process has left. Returns its socket, if it is still meant."""
        assert self._handover is not None
        sock = self._handover.inherited
        if sock is not None:
            await self._first_looks(TAKE_OVER_LOOKS_S)
            await self._each_pool_serves(TAKE_OVER_SERVES_S)
        await self._handover.take()
        if sock is None or is_meant(sock, self.plane.settings.listen):
            return sock
        sock.close()
        return None

    async def _hand_over(self) -> None:
        """Leave the ports and the files to the next process, and then the clients in a drain."""
        assert self._handover is not None
        await self._handover.leave.wait()
        await self._port.close()
        if self._door is not None:
            await self._door.close()
        await self._keep_states()
        if self._ledger is not None:
            await self._ledger.write()
        self._handover.left()
        self._stop.set()

    def take_signals(self) -> None:
        """Set the handlers that `serve` and `leave` tell of. Call it before READY is told."""
        loop = self.plane.loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._reload_by_signal)

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT. SIGHUP reloads."""
        self._tell_of_descriptors()
        self.plane.memory.warn(self.plane.limits.body_bytes)
        await self._stop.wait()

    async def leave(self) -> None:
        """Drain, and close everything. A second SIGTERM or SIGINT ends the drain."""
        if self._handover is None or not self._handover.leave.is_set():
            notify("STOPPING=1", "STATUS=draining")
        elif self._runner is not None:  # who asks at the admin port is to ask the next process
            told = self._handover.tell(lambda: self.plane.running.total)
            self._tasks.append(self.plane.loop.create_task(told))
            await self._runner.cleanup()
        await drain(self.plane, self._port, self.plane.settings.drain, self._hurry)
        await self.close()

    async def close(self) -> None:
        """Close both ports and everything behind them."""
        await self._port.close()
        for client in list(self.plane.clients):
            client.break_off()
        self._watch.stop()
        await self._discovery.stop()
        self.plane.adapters.close()
        self.plane.labelling.stop()
        await self.monitor.stop()
        await self._exporters.stop()
        count_all(self.plane)
        self.plane.background.close()
        await self._spans.stop()
        self._pulse.stop()
        for task in self._tasks:
            task.cancel()
        await self._keep()
        self._retirement.close()
        for connections in self.plane.connections.values():
            connections.close()
        if self._door is not None:
            await self._door.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self.plane.counting is not None:
            self.plane.counting.close()
        self.plane.decoders.close()
        count_all(self.plane)
        if self._access_log is not None:
            self._access_log.close()

    async def _keep(self) -> None:
        """Write once more what survives a restart."""
        await self._keep_states()
        if self._ledger is not None and self._writing is not None:
            self._ledger.stop()
            await self._writing

    async def _keep_states(self) -> None:
        for file, _ in self._state_files:
            file.stop()
        await asyncio.gather(*[keeping for _, keeping in self._state_files])
        self._state_files.clear()

    def _open_files(self) -> None:
        """Read what survives a restart. Raises OSError if a file cannot be used."""
        folder, plane = self.plane.settings.state.dir, self.plane
        if folder is not None:
            self._ledger = ledger = Ledger(Path(folder), plane.budgets, plane.metrics.usage)
            ledger.open(plane.now())
            self._writing = plane.loop.create_task(ledger.watch())
            for name, kept in (("canaries", plane.canaries), ("operators", self._operators)):
                file = JsonFile(Path(folder), name, kept)
                file.read()
                self._state_files.append((file, plane.loop.create_task(file.watch())))

    def _fit_clients(self) -> None:
        self.plane.clients.fit = descriptors.secure(
            self.plane.settings.limits.connections, len(self.plane.fleet.backends)
        )

    def _tell_of_descriptors(self) -> None:
        descriptors.warn(
            self.plane.settings.limits.connections,
            len(self.plane.fleet.backends),
            self.plane.clients.fit,
            chosen=self.plane.configuration.origins["limits.connections"] != "default",
        )

    async def _accept(self, sock: socket.socket) -> None:
        # Accepted sockets inherit these options, which saves the calls for each connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        await self._port.open(sock)

    async def _start_admin(self) -> None:
        admin = self.plane.settings.admin
        loop = self.plane.loop

        def handler() -> asyncio.Protocol:
            assert runner.server is not None
            return runner.server()

        visitors = Visitors(handler, loop.call_later)
        administration = Admin(
            self.plane,
            self.monitor,
            self._reload,
            self._retirement,
            visitors,
            self._verdicts,
            self._discovery,
            self._operators,
            self._handover,
        )
        self._tasks.append(loop.create_task(administration.watch()))
        self._runner = runner = administration.runner()
        await runner.setup()
        self._door = Door(loop, visitors)
        try:
            self.admin_port = await self._door.open(admin.host, admin.port)
        except OSError as error:
            raise named(error, "admin", admin.host, admin.port) from None

    def _use(self, configuration: Configuration) -> None:
        """Put a configuration in use, at the start or in a reload."""
        settings = configuration.settings
        if settings.log.level != self.plane.settings.log.level:
            logging.getLogger().setLevel(settings.log.level.upper())
        limits, size = self.plane.settings.limits, len(self.plane.fleet.backends)
        count_all(self.plane)  # in the pools and for the tenants that they were for
        self.plane.use(configuration)
        if settings.limits != limits or len(self.plane.fleet.backends) != size:
            with contextlib.suppress(OSError):  # too few for one client: keep the old number
                self._fit_clients()
        if settings.limits != limits:
            self._tell_of_descriptors()
            self.plane.memory.warn(settings.limits.body_bytes)
        self.monitor.use(
            configuration.fleet,
            settings.health,
            configuration.authorizations,
            configuration.connections,
        )
        self._watch.use(watch=settings.reload.watch)
        self._discovery.use(settings)
        self._exporters.use(configuration)
        self._spans.use(settings.tracing, configuration.certificates.receiver)
        self.plane.tracer = self._spans.tracer
        if settings.log.access and self._access_log is None:
            self._access_log = AccessLog(self.plane.loop, self.plane.metrics, sys.stdout.fileno())
        if self._access_log is not None:
            self._access_log.as_text = settings.log.format == "text"
        self.plane.access_log = self._access_log if settings.log.access else None

    def _serving(self) -> list[str]:
        return [each.url for each in self.plane.fleet.backends if each.can_serve]

    def _reload_by_signal(self) -> None:
        reload = self.plane.loop.create_task(self._reload.by_signal())
        self._reloads.add(reload)  # the loop does not keep it alive
        reload.add_done_callback(self._reloads.discard)

    def _signalled(self) -> None:
        if self._told_to_stop:
            self._hurry.set()
        self._told_to_stop = True
        self._stop.set()

    def _slept(self, time_s: float) -> None:
        logger.warning("the process was not running, all deadlines are later slept_s=%.1f", time_s)
        self._clock.slept(time_s)
        self.plane.sleep.is_over(self._clock.now())
        self.plane.canaries.slept()
        self.plane.clients.slept()
        self.monitor.heard_nothing()

    def _worked(self, time_s: float) -> None:
        logger.warning(
            "the event loop was blocked by its own work or lacked CPU (see cpu.stat's"
            " nr_throttled), every answer was delayed delayed_s=%.1f",
            time_s,
        )
        self.monitor.heard_nothing()  # deadlines of clients stay

    def _failed(self, backend: Backend, error: BackendError, cause: Cause) -> None:
        certain = _CERTAIN.get(type(error))
        if certain is not None:
            self.monitor.certain(backend, certain)
        elif isinstance(error, BackendRefusing):
            self.monitor.refused(backend, key=isinstance(error, KeyRefused))
        elif error.suspicious or isinstance(error, AnswerBare):
            self.monitor.request_failed(backend, cause)

    async def _load_adapter(self, backend: Backend, name: str, path: str) -> Outcome:
        return await self.monitor.load_adapter(backend, name, path)
