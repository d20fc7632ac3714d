"""A cell of the panel: engines, who sends what, and how it is judged under each rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from penstock.bench.overload.calls import Call
from penstock.bench.overload.idle import Idle
from penstock.bench.overload.mixes import ENGINES, H100
from penstock.bench.overload.outcome import of_ordinary, of_pressed
from penstock.bench.overload.site import Class, Site
from penstock.bench.overload.source import Source
from penstock.bench.overload.world import GOOD_TTFT_S, World

FLEET: Final = Site((H100,) * ENGINES)
# Policy, and whether requests wait.
RULES: Final = {
    "at_once": ("token_cost", False),
    "admission": ("token_cost", True),
    "least_requests": ("least_requests", False),
}
# As penstock has them where nothing else is configured (conf/admission.py): see CLASSES.
PATIENT: Final = (
    Class(10.0, impatient=False),
    Class(30.0, 0.2, impatient=False),
    Class(600.0, 0.1, impatient=False),
)
VICTIM: Final = "victim"
HIGH: Final = "high"


@dataclass(frozen=True, slots=True)
class Past:
    """A request that somebody sends the first engine past penstock."""

    prompt_tokens: int
    output_tokens: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Scene:
    """Figures are of `warm_s` to `length_s`. Then there is `rest_s` for answers.

    `victim`: for whom it is judged, the tenant VICTIM or the class HIGH, with the others and alone.
    """

    name: str
    sources: tuple[Source, ...]
    site: Site = FLEET
    warm_s: float = 20.0
    length_s: float = 80.0
    rest_s: float = 40.0
    past: Past | None = None
    pressed: bool = False
    victim: str = ""
    deadline_s: float = GOOD_TTFT_S  # where it is pressed

    def figures(self, rule: str, seed: int) -> dict[str, float]:
        """Compute it, in virtual time. The same gives the same. Raises BenchError."""
        span_s = self.warm_s, self.length_s
        world, idle = self._play(rule, seed, self._calls(seed))
        preemptions = sum(engine.preemptions_total for engine in world.engines)
        if not self.pressed:
            tenants = [each.clients.tenant for each in self.sources]
            named = tuple(dict.fromkeys(filter(None, tenants)))
            return of_ordinary(world.log, *span_s, preemptions, idle.share(*span_s), named)
        found = of_pressed(world.log, *span_s, preemptions, self.is_victim)
        if self.victim:
            alone, _ = self._play(rule, seed, list(filter(self.is_victim, self._calls(seed))))
            told = of_pressed(alone.log, *span_s, 0, self.is_victim)
            found["alone_p99_s"] = told.get("victim_p99_s", 0.0)
        return found

    def is_victim(self, call: Call) -> bool:
        if self.victim == HIGH:
            return call.rank == 0
        return bool(self.victim) and call.tenant == self.victim

    def _calls(self, seed: int) -> list[Call]:
        """The same under all rules."""
        calls: list[Call] = []
        for number, source in enumerate(self.sources):
            rng = Random(f"{number} {seed}" if number else f"{seed}")
            calls += source.calls(self.length_s, rng)
        return sorted(calls, key=lambda call: call.at_s)

    def _play(self, rule: str, seed: int, calls: Sequence[Call]) -> tuple[World, Idle]:
        policy, enabled = RULES[rule]
        classes = (Class(self.deadline_s),) * 2 if self.pressed else PATIENT
        world = World(self.site, enabled=enabled, seed=seed, policy=policy, classes=classes)
        if self.past is not None:
            world.send_past(0, self.past.prompt_tokens, self.past.output_tokens, self.past.at_s)
        idle = Idle(world)
        world.run(calls, self.length_s + self.rest_s)
        return world, idle
