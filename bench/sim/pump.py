"""Drives the engine in real time: one timer, from step to step.

A step's tokens are delivered when its duration, divided by the speed-up, is over. Steps are
timed from the end planned for the one before, so that late timers do not slow the engine down;
a delay of more than one step is not made up for.
"""

import asyncio

from penstock.bench.sim.engine import Engine, Sequence


class ApiServer:
    """What stands before vLLM's scheduler: one process that reads, templates and tokenizes.

    It takes `api_s`, in engine seconds, for each request, one after the other. 0: no time.
    """

    def __init__(self, api_s: float) -> None:
        self._api_s = api_s
        self._free_s = 0.0

    def ready_s(self, now_s: float) -> float:
        """When a request that comes now reaches the scheduler."""
        if not self._api_s:
            return now_s
        self._free_s = max(self._free_s, now_s) + self._api_s
        return self._free_s


class Pump:
    """The engine's clock and the deliverer of its tokens."""

    def __init__(self, engine: Engine, speedup: float) -> None:
        assert speedup > 0
        self._engine = engine
        self.speedup = speedup
        self._api = ApiServer(engine.profile.api_s)
        # Sequences that the scheduler has not yet, with what will give them to it.
        self._parsed: dict[Sequence, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def submit(self, sequences: list[Sequence]) -> None:
        """Queue sequences, once the API server has read them."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        ready_s = self._api.ready_s(now_s * self.speedup) / self.speedup
        if ready_s <= now_s:
            self._queue(sequences)
            return
        timer = loop.call_at(ready_s, self._queue, sequences)
        self._parsed.update(dict.fromkeys(sequences, timer))

    def _queue(self, sequences: list[Sequence]) -> None:
        """Queue sequences and see to it that steps run."""
        now_s = asyncio.get_running_loop().time()
        for sequence in sequences:
            self._parsed.pop(sequence, None)
            self._engine.submit(sequence, now_s * self.speedup)
        self._wake(now_s)

    def abort(self, sequences: list[Sequence]) -> None:
        """Drop sequences at once; those that have finished are left alone."""
        for sequence in sequences:
            timer = self._parsed.pop(sequence, None)
            if timer is not None:  # those of one request come and go together
                timer.cancel()
            self._engine.abort(sequence)
        # Freed blocks may let a waiting prompt in behind streams that hang.
        self._wake(asyncio.get_running_loop().time())

    def stop(self) -> None:
        for timer in (self._timer, *self._parsed.values()):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._parsed.clear()

    def _wake(self, now_s: float) -> None:
        if self._timer is None:
            self._due_s = now_s
            self._step()

    def _step(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        engine_s, emissions = self._engine.step(now_s * self.speedup)
        if engine_s == 0.0:
            self._timer = None
            return
        step_s = engine_s / self.speedup
        self._due_s = max(self._due_s, now_s - step_s) + step_s
        self._timer = loop.call_at(self._due_s, self._deliver, emissions)

    def _deliver(self, emissions: list[Sequence]) -> None:
        for sequence in emissions:
            sequence.owner.token()
        self._step()
