"""The same calls over HTTP: real proxies before simulated servers, in real time.

`speedup`: how many times as fast as they are the servers run. All times of clients are divided by
it, and those that are told are those of the engines.
"""

import asyncio
import re
from asyncio import Future
from collections.abc import Sequence
from random import Random
from time import monotonic
from typing import Final

from penstock.bench.client import HOST, ClientConnection, Way, post
from penstock.bench.overload.calls import Call, Log, delay_s
from penstock.bench.overload.world import GOOD_TPOT_S, GOOD_TTFT_S
from penstock.bench.peers.workload import Prompt
from penstock.bench.routing.trace import Arrival

# How long an answer may take once it has begun, in real time.
ANSWER_S: Final = 60.0
_TEXT: Final = re.compile(rb'"content": ?"[^"]')
# By rank.
_CLASSES: Final = ("interactive", "standard")


class Watched(ClientConnection):
    """A connection for one request. `begun` is done with its first token, or with its end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: Future[float] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        over = self.answer.ended or not self.open
        if not self.begun.done() and (over or _TEXT.search(self.answer.body)):
            self.begun.set_result(monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.begun.done():
            self.begun.set_result(monotonic())


class Player:
    def __init__(self, port: int, speedup: float, seed: int) -> None:
        self._port = port
        self._speedup = speedup
        self._rng = Random(seed)
        self._began_s = 0.0
        self.log = Log()

    async def play(self, calls: Sequence[Call]) -> Log:
        """Each call at its time, however late the others are."""
        self.log.calls = list(calls)
        self._began_s = monotonic()
        async with asyncio.TaskGroup() as group:
            for call in calls:
                await asyncio.sleep(self._began_s + call.at_s / self._speedup - monotonic())
                group.create_task(self._call(call))
        return self.log

    def _now_s(self) -> float:
        return (monotonic() - self._began_s) * self._speedup

    async def _call(self, call: Call) -> None:
        while True:
            call.attempts += 1
            hint_s = await self._attempt(call)
            if hint_s is None or call.attempts > call.retries:
                return
            await asyncio.sleep(delay_s(call.attempts, hint_s, self._rng) / self._speedup)

    async def _attempt(self, call: Call) -> float | None:
        """None: it is over. Otherwise the Retry-After, 0.0 without one."""
        at_s = monotonic()
        patience_s = call.patience_s / self._speedup
        arrival = Arrival(call.at_s, call.prompt_tokens, call.output_tokens)
        prompt = Prompt.of(arrival, f"{call.at_s:.6f}")
        headers = prompt.headers | {
            "x-penstock-priority": _CLASSES[call.rank],
            "x-stainless-read-timeout": f"{patience_s:.3f}",
        }
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Watched, HOST, self._port)
        except OSError:
            return 0.0
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.send(post("/v1/chat/completions", prompt.body, lines.encode()))
        try:
            first_s = await asyncio.wait_for(asyncio.shield(connection.begun), patience_s)
            return await self._look(call, connection, at_s, first_s)
        except TimeoutError:
            call.late += 1
            call.sent += 1
            return 0.0
        finally:
            connection.leave(Way.CLOSE)

    async def _look(
        self, call: Call, connection: Watched, at_s: float, first_s: float
    ) -> float | None:
        answer = connection.answer
        if answer.status != 200:
            call.refused += 1
            self.log.refusals.append(self._now_s())
            if answer.headers.get("x-should-retry") == "false":
                return None
            return float(answer.headers.get("retry-after-ms", "0")) / 1e3 * self._speedup
        call.sent += 1
        call.ttft_s = (first_s - at_s) * self._speedup
        self.log.tokens.append((self._now_s(), call.prompt_tokens))
        await asyncio.wait_for(connection.ended(), ANSWER_S)
        if not answer.ended or b"[DONE]" not in answer.body[-64:]:
            return None
        seconds = (monotonic() - first_s) * self._speedup
        call.tpot_s = seconds / max(1, call.output_tokens - 1)
        call.good = call.ttft_s <= GOOD_TTFT_S and call.tpot_s <= GOOD_TPOT_S
        self.log.tokens.append((self._now_s(), call.output_tokens))
        return None
