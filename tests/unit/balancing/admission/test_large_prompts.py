"""A large prompt among many small requests of its class, which all find room before it does."""

from random import Random
from typing import Any

import pytest

from penstock.balancing.admission.ticket import Ticket
from tests.unit.balancing.admission.lines import Door

KV_TOKENS = 40_000
STEP_S = 0.02
COMES_S = 5.0
WITHIN_S = 30.0  # the deadline of the class `standard`
CLASSES: dict[str, Any] = {"shares": (0.0, 0.0), "classes": ("high", "low")}


class Flood:
    """One tenant that always has 40 small requests waiting, before one backend."""

    def __init__(self, rank: int) -> None:
        self.door = Door("a", kv_tokens=KV_TOKENS, **CLASSES)
        self._rank = rank
        self._rng = Random(1)
        self._lengths: dict[Ticket, int] = {}
        for _ in range(70):  # so many that the lengths of answers are known
            for name in ("flood", "victim"):
                tokens = self._rng.randint(200, 600)
                self.door.finish(self.door.enter(50, 0.0, name=name), 0.0, tokens)

    def step(self, now_s: float) -> None:
        """A token for each stream, more requests, and a wake."""
        while not self.door.admission.lines or self.door.admission.waiting < 40:
            ticket = self.door.enter(
                self._rng.randint(250, 750), now_s, name="flood", rank=self._rank
            )
            self._lengths[ticket] = self._rng.randint(200, 600)
        for ticket, lease in self.door.leases.items():
            if not lease.ended:
                lease.first_token(now_s)
                lease.tokens(1)
                if lease.generated_tokens == self._lengths.get(ticket, 100):
                    lease.complete(now_s, lease.generated_tokens)
        self.door.wake(now_s)


def wait_s(tokens: int, flood_rank: int) -> float:
    """How long another tenant's prompt waits beside the flood."""
    flood, steps, victim = Flood(flood_rank), 0, None
    while victim is None or victim not in flood.door.leases:
        now_s = steps * STEP_S
        flood.step(now_s)
        if now_s >= COMES_S and victim is None:
            victim = flood.door.enter(tokens, now_s, name="victim", max_tokens=200)
        steps += 1
        if now_s > COMES_S + WITHIN_S:
            return now_s - COMES_S
    return flood.door.leases[victim].began_s - COMES_S


@pytest.mark.parametrize("tokens", [500, 5_000, 20_000])
def test_a_prompt_of_its_class_gets_its_turn(tokens: int) -> None:
    assert wait_s(tokens, flood_rank=0) < 10.0


@pytest.mark.parametrize("tokens", [500, 5_000, 20_000])
def test_a_prompt_of_a_higher_class_gets_its_turn(tokens: int) -> None:
    assert wait_s(tokens, flood_rank=1) < 10.0


LIST: dict[str, Any] = {"prompts": 200, "max_tokens": 1}


@pytest.mark.parametrize("generates", [True, False])
def test_lists_of_prompts_that_fill_an_engine_leave_the_other_one_to_others(
    *, generates: bool
) -> None:
    """Two tenants send 200 prompts of 2,000 tokens each. There are two backends."""
    door = Door("a", "b", kv_tokens=400_000)
    fields = LIST | {"generates": generates, "stream": generates}
    first = door.enter(400_000, 0.0, name="list", **fields)
    second = door.enter(400_000, 0.1, name="list", **fields)
    assert first in door.leases
    assert second.waits
    for number in range(20):
        ticket = door.enter(60, 0.2 + number, name="victim", max_tokens=20, deadline_s=10.0)
        door.wake(0.2 + number)
        assert door.leases[ticket].backend is not door.leases[first].backend
        door.first(ticket, 0.3 + number)
        door.finish(ticket, 0.4 + number)
    door.leases[first].end(30.0)
    assert door.wake(30.0) == [second]
