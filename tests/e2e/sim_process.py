"""A simulated server in a process of its own, which can be killed and stopped."""

import asyncio
import contextlib
import signal
import sys

from tests.e2e.process import ROOT

STARTS_WITHIN_S = 60.0


class SimProcess:
    """`penstock sim` on a port that it keeps through its deaths."""

    def __init__(self, *flags: str) -> None:
        self.url = ""
        self._flags = flags
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it unless it runs; returns when it listens."""
        if self._process is not None and self._process.returncode is None:
            return
        port = self.url.rpartition(":")[2] or "0"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "sim", "--port", port, *self._flags),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(STARTS_WITHIN_S):
            line = await self._process.stdout.readline()
        self.url = line.split()[1].decode()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """As a crash does: without a word."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
