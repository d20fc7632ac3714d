"""Random requests before a door."""

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from penstock.balancing.admission.queued_request import QueuedRequest, TooLate
from penstock.balancing.lease import Lease
from tests.unit.balancing.admission.door import FLOOR, Door

BLOCKS = tuple(range(8))


def shared(tokens: int = 1_600, own: int = 0, **fields: Any) -> dict[str, Any]:
    """A prompt of eight common blocks of 200 tokens, and of four of its own."""
    blocks = BLOCKS + tuple(range(1_000 * own, 1_000 * own + 4 * bool(own)))
    fields |= {"prompt_tokens": tokens, "blocks": blocks, "block_tokens": tokens / len(blocks)}
    return fields


class Walk:
    """Requests of some tenants and classes come, go on and end in any order."""

    def __init__(
        self,
        seed: int,
        ask: Callable[[Door, dict[str, Any], float], object] = lambda *_: None,
        *,
        blocks: bool = False,
        streams: bool = True,
    ) -> None:
        """`ask` is called before each. `blocks`: prompts share beginnings. `streams`: and nothing
        else comes."""
        self.rng = Random(seed)
        self.door = Door("a", "b", kv_tokens=20_000, wakes_at_once=False, **FLOOR)
        self.ask = ask
        self.blocks, self.streams = blocks, streams
        self.entered: Lease | TooLate | None = None  # what the last one was told at once
        self.predicted_s = 0.0
        self.waiting: list[QueuedRequest] = []
        self.told: list[object] = []
        self.now_s = 0.0

    def step(self) -> None:
        rng, door = self.rng, self.door
        self.now_s += rng.choice([0.0, 0.02, 0.3])
        if rng.random() < 0.1:
            door.report(self.now_s)
        self._wake()
        door.policy.prices = {"a": rng.uniform(1.0, 2.0), "b": rng.uniform(1.0, 2.0)}
        fields = self._fields()
        self.ask(door, fields, self.now_s)
        last = door.request(since_s=self.now_s, **fields)
        door.come(last, self.now_s)
        self.waiting = [each for each in (*self.waiting, last) if each.waits]
        self.entered = door.leases.get(last) or door.refused.get(last)
        self.predicted_s = last.predicted_s
        where = door.where(last) if door.is_sent(last) else None
        self.told += [where, self.predicted_s, last in door.refused]
        for request in door.running:
            if rng.random() < 0.15:
                self._goes_on(request)
        if self.waiting and rng.random() < 0.02:
            door.admission.leave(rng.choice(self.waiting), self.now_s)
        self._wake()

    def end(self) -> None:
        """All leave."""
        for request in self.waiting:
            self.door.admission.leave(request, self.now_s)
        for request in self.door.running:
            self.door.leases[request].end(self.now_s)

    def _wake(self) -> None:
        """As the clock does."""
        self.told += [request.name for request in self.door.wake(self.now_s)]

    def _fields(self) -> dict[str, Any]:
        rng = self.rng
        fields: dict[str, Any] = {
            "tokens": rng.choice([50, 1_000, 4_000, 9_000]),
            "name": rng.choice("abc"),
            "rank": rng.randrange(2),
            "deadline_s": rng.choice([0.5, 5.0, inf]),
            "choices": rng.choice([1, 1, 1, 3, 300]),
            "max_tokens": rng.choice([None, 200]),
        }
        if not self.streams:
            fields |= {"stream": rng.random() < 0.5, "generates": rng.random() < 0.8}
            fields["prompts"] = rng.choice([1, 1, 2])
        if self.blocks:
            fields |= {"prompts": 1} | shared(rng.choice([1_600, 1_700]), rng.randrange(3))
        return fields

    def _goes_on(self, request: QueuedRequest) -> None:
        lease, kind = self.door.leases[request], self.rng.randrange(8)
        if kind == 0:
            lease.tokens(self.rng.randint(1, 30))
        elif kind == 1:
            lease.end(self.now_s)
        elif kind == 2:
            lease.fail(self.now_s, suspicious=False)
        elif kind == 3:
            lease.first_token(self.now_s, self.rng.randrange(6))
        else:
            self.door.finish(request, self.now_s, self.rng.randint(1, 300))
