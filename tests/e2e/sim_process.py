"""A simulated server in a process of its own, which can be killed and stopped."""

import asyncio
import signal

from tests.e2e.forked import Forked

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
