"""A proxy process forked from one that has imported everything.

Importing is most of the CPU of an ordinary test: 0.7 s for each process. Here the standard
library's fork server imports once for each pytest process and then forks: same code, same
pipes, same signals. `test_restart.py` and `test_demo.py` start processes as users do.
So do tests that change what is imported.
"""

import asyncio
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
_CONTEXT: Final = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["penstock.proxy.commands.cli", "penstock.proxy.app", "penstock.bench.sim.cli", "uvloop"]
)


class Ran(NamedTuple):
    """What became of a command."""

    status: int
    out: str
    err: str


async def run(
    *arguments: str, environment: Mapping[str, str] | None = None, within_s: float = 20.0
) -> Ran:
    """Run `penstock ARGUMENTS`, which must end by itself."""
    process = await Forked.start(arguments, environment)
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate()
    finally:
        process.kill()
    assert b"Traceback" not in err, err.decode()
    return Ran(await process.wait(), out.decode(), err.decode())


class Forked:
    """What the tests use of `asyncio.subprocess.Process`."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], descriptors: int | None
    ) -> None:
        out, out_of_child = os.pipe()
        err, err_of_child = os.pipe()
        self._pipes = out, err
        ends = Connection(out_of_child, readable=False), Connection(err_of_child, readable=False)
        self._process = _CONTEXT.Process(
            target=_run, args=(arguments, environment, descriptors, *ends), daemon=True
        )
        self._process.start()
        for end in ends:
            end.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self._transports: list[asyncio.ReadTransport] = []
        self._ended = asyncio.Event()

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        descriptors: int | None = None,
    ) -> "Forked":
        """Run `penstock ARGUMENTS`; returns when it runs.

        `environment` has further variables, `descriptors` limits what the process may open.
        """
        forked = cls(arguments, os.environ | (environment or {}), descriptors)
        loop = asyncio.get_running_loop()
        for reader, pipe in zip((forked.stdout, forked.stderr), forked._pipes, strict=True):
            protocol = partial(asyncio.StreamReaderProtocol, reader)
            transport, _ = await loop.connect_read_pipe(protocol, os.fdopen(pipe, "rb", 0))
            forked._transports.append(transport)
        sentinel = forked._process.sentinel

        def ended() -> None:
            loop.remove_reader(sentinel)
            forked._ended.set()

        loop.add_reader(sentinel, ended)
        return forked

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        await self._ended.wait()
        self._process.join()
        assert self.returncode is not None
        return self.returncode

    async def communicate(self) -> tuple[bytes, bytes]:
        """What it writes to stdout and stderr until it ends."""
        out, err = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await self.wait()
        return out, err

    def close(self) -> None:
        """Forget what it wrote and nobody read."""
        for transport in self._transports:
            transport.close()


def _run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    descriptors: int | None,
    out: Connection,
    err: Connection,
) -> None:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    os.chdir(ROOT)
    # A shell ignores it in what it runs in the background, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    from penstock.proxy.commands.cli import main

    raise SystemExit(main(arguments))


STARTS_WITHIN_S = 60.0


class SimProcess:
    """`penstock sim` on a port that it keeps through its deaths."""

    def __init__(self, *flags: str) -> None:
        self.url = ""
        self._flags = flags
        self._process: Forked | None = None

    async def start(self) -> None:
        """Start it unless it runs; returns when it listens."""
        if self._process is not None and self._process.returncode is None:
            return
        port = self.url.rpartition(":")[2] or "0"
        self._process = await Forked.start(("sim", "--port", port, *self._flags))
        async with asyncio.timeout(STARTS_WITHIN_S):
            line = await self._process.stdout.readline()
        self.url = line.split()[1].decode()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """As a crash does: without a word."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        self._process.close()


async def run_program(*command: str, folder: Path | None = None, within_s: float = 20.0) -> bytes:
    """A command that must succeed: what it wrote to stdout. It runs in `folder`."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(within_s):
            stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"{command[0]} failed: {stderr.decode()[-2000:]}"
    return stdout
