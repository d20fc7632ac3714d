"""How long engines had room while a request waited: what admission costs for nothing.

A sample counts if, by the truth of the engine that the policy would take for the oldest request
(or of one that costs about the same), the request could begin there: a free place, room in the KV
cache for all of it and for what the others will still generate, and little prefill before it. It
counts only if that was so at the sample before, too.
"""

from math import inf
from typing import Final

from penstock.bench.overload.calls import Call
from penstock.bench.overload.world import Attempt, World
from penstock.bench.sim.profiles import Gpu, Work

SAMPLE_S: Final = 0.02
# Backends that cost the policy so much more are as good.
AS_GOOD: Final = 1.01
# What an engine may have to prefill, as admission has it (docs/admission.md).
WINDOW_S: Final = 0.1
WINDOW_STEPS: Final = 4


class Idle:
    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[Attempt, None] = {}  # and some that wait no more
        self._sampling = False
        self._before = False  # at the last sample
        self._times_s: list[float] = []
        world.on_wait = self._begin

    def share(self, from_s: float, to_s: float) -> float:
        """Of this time."""
        count = sum(from_s <= at_s < to_s for at_s in self._times_s)
        return count * SAMPLE_S / (to_s - from_s)

    def _begin(self, attempt: Attempt) -> None:
        self._waiting[attempt] = None
        if not self._sampling:
            self._sampling, self._before = True, False
            self._world.at(attempt.at_s, self._sample)

    def _sample(self, now_s: float) -> None:
        head = self._oldest()
        if head is None:
            self._sampling = False
            return
        had, self._before = self._before, self._has_room(head, now_s)
        if had and self._before:
            self._times_s.append(now_s)
        self._world.at(now_s + SAMPLE_S, self._sample)

    def _oldest(self) -> Attempt | None:
        while self._waiting:
            attempt = next(iter(self._waiting))
            if attempt.ticket is not None and attempt.ticket.waits and not attempt.over:
                return attempt
            del self._waiting[attempt]
        return None

    def _has_room(self, attempt: Attempt, now_s: float) -> bool:
        assert attempt.ticket is not None
        # Not the gate: it would let prefills end by the clock sooner than without this watch.
        fit = [backend for backend in self._world.backends if backend.fit]
        costs = self._world.pool.policy.costs(fit, attempt.ticket.ask, now_s)
        most = AS_GOOD * min(costs, default=inf)
        return any(
            self._could_begin(int(backend.name), attempt.call, now_s)
            for backend, cost in zip(fit, costs, strict=True)
            if cost <= most
        )

    def _could_begin(self, index: int, call: Call, now_s: float) -> bool:
        world = self._world
        engine, site = world.engines[index], world.site
        profile = site.profiles[index]
        there = [*engine.sequences, *world.under_way[index]]
        if len(there) + call.choices > profile.max_num_seqs:
            return False
        free_tokens = engine.cache.free * profile.block_tokens
        queued_s = max(0.0, world.step_ends_s[index] - now_s)
        work = Work()
        for each in there:
            held_tokens = (each.known + each.unknown) * profile.block_tokens
            free_tokens -= max(0, each.prompt_tokens + each.max_tokens - held_tokens)
            if each.computed < each.prompt_tokens:
                queued_s += _prefill_s(profile, each.prompt_tokens, each.computed)
            else:
                work.add(1, each.computed, decodes=True)
        if free_tokens < call.prompt_tokens + call.answer_tokens * call.choices:
            return False
        window_s = max(WINDOW_S, WINDOW_STEPS * profile.step_s(work))
        return queued_s < window_s + site.round_trip_s


def _prefill_s(profile: Gpu, tokens: int, computed: int) -> float:
    left = tokens - computed
    return left * profile.token_s + left * (computed + left / 2) * profile.attention_s
