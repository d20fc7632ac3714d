"""The cells of the panel: engines, who sends what, and how it is judged under each rule.

ORDINARY has patient clients below the capacity, or little above it: nobody should notice admission
there, and where an engine has room, nothing should wait. PRESSED has far too many calls, floods,
and what else one tenant does to others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from pathlib import Path
from random import Random
from typing import Final

from penstock.balancing.admission.degradation import Step
from penstock.bench.overload.calls import (
    HIGH_SHARE,
    PATIENT,
    Call,
    Clients,
    Closed,
    Log,
    Open,
    Recorded,
    Source,
    Steady,
)
from penstock.bench.overload.idle import Idle
from penstock.bench.overload.mixes import (
    EMBEDDING,
    ENGINES,
    H100,
    MIXES,
    PLAIN,
    Begins,
    Mix,
    Shown,
    sizes,
)
from penstock.bench.overload.outcome import of_ordinary, of_pressed
from penstock.bench.overload.world import GOOD_TTFT_S, Class, Site, World
from penstock.bench.sim.profiles import GPUS, slowed

FLEET: Final = Site((H100,) * ENGINES)
# Policy, and whether requests wait.
RULES: Final = {
    "at_once": ("token_cost", False),
    "admission": ("token_cost", True),
    "least_requests": ("least_requests", False),
}
# As penstock has them where nothing else is configured (conf/admission.py): see CLASSES.
PATIENT_CLASSES: Final = (
    Class(10.0, impatient=False),
    Class(30.0, 0.2, impatient=False),
    Class(600.0, 0.1, impatient=False),
)
# What happens before is not counted, and after the last call there is time for answers.
WARM_S: Final = 20.0
REST_S: Final = 40.0
VICTIM: Final = "victim"
HIGH: Final = "high"


def is_high(call: Call) -> bool:
    return call.rank == 0


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
    warm_s: float = WARM_S
    length_s: float = 80.0
    rest_s: float = REST_S
    past: Past | None = None
    pressed: bool = False
    victim: str = ""
    deadline_s: float = GOOD_TTFT_S  # where it is pressed

    def figures(self, rule: str, seed: int) -> dict[str, float]:
        """Compute it, in virtual time. The same gives the same. Raises BenchError."""
        calls = self.calls(seed)
        if not self.pressed:
            world = self._world(rule, seed)
            idle = Idle(world)
            log = world.run(calls, self.length_s + self.rest_s)
            span_s = self.warm_s, self.length_s
            tenants = [each.clients.tenant for each in self.sources]
            named = tuple(dict.fromkeys(filter(None, tenants)))
            return of_ordinary(log, *span_s, world.preemptions, idle.share(*span_s), named)
        groups = {HIGH: is_high, VICTIM: self.is_victim}
        found = of_pressed(*self.played(rule, seed, calls), groups)
        if self.victim:
            alone = [call for call in self.calls(seed) if self.is_victim(call)]
            told = of_pressed(*self.played(rule, seed, alone), groups)
            found["alone_ttft_p99_s"] = told.get("victim_ttft_p99_s", 0.0)
        return found

    def is_victim(self, call: Call) -> bool:
        if self.victim == HIGH:
            return is_high(call)
        return bool(self.victim) and call.tenant == self.victim

    def calls(self, seed: int) -> list[Call]:
        """The same under all rules."""
        calls: list[Call] = []
        for number, source in enumerate(self.sources):
            rng = Random(f"{number} {seed}" if number else f"{seed}")
            calls += source.calls(self.length_s, rng)
        return sorted(calls, key=lambda call: call.at_s)

    def played(
        self, rule: str, seed: int, calls: Sequence[Call], steps: tuple[Step, ...] = ()
    ) -> tuple[Log, float, float, int]:
        """Play these calls: what was seen, the part of the time that counts, preemptions."""
        world = self._world(rule, seed, steps)
        log = world.run(calls, self.length_s + self.rest_s)
        return log, self.warm_s, self.length_s, world.preemptions

    def _world(self, rule: str, seed: int, steps: tuple[Step, ...] = ()) -> World:
        policy, enabled = RULES[rule]
        classes = (Class(self.deadline_s),) * 2 if self.pressed else PATIENT_CLASSES
        world = World(
            self.site, enabled=enabled, seed=seed, policy=policy, classes=classes, steps=steps
        )
        if self.past is not None:
            world.send_past(0, self.past.prompt_tokens, self.past.output_tokens, self.past.at_s)
        return world


# Beside the repository, as for `make bench-routing`.
TRACES: Final = Path(__file__).resolve().parents[3] / "shared" / "traces"
TRACE: Final = TRACES / "servegen-language-m-large.day3-12to18h.jsonl.gz"
BEGIN_S: Final = 10.0


def _reasoning(rng: Random) -> tuple[int, int]:
    """About as in ServeGen's reasoning trace: means of 2,000 and 1,300 tokens, and long tails."""
    prompt, answer = rng.lognormvariate(6.2, 1.5), rng.lognormvariate(6.7, 0.95)
    return round(min(prompt, 20_000.0)) + 20, round(min(answer, 16_000.0)) + 20


# Capacities are what four engines (`small`: one, `long`: two) finish at most, sent at once.
CHATS: Final = Mix("chats", H100, sizes(500, 2_000, 100, 300), 82.0)
BATCH: Final = Mix("batch", H100, sizes(500, 2_000, 500, 1_500), 25.5)
EMBEDDINGS: Final = Mix("embeddings", H100, sizes(500, 4_000, 1, 1), 75.0)
SMALL: Final = Mix("small", replace(H100, kv_tokens=30_000), sizes(60, 140, 60, 200), 130.0)
LONG: Final = Mix("long", H100, sizes(20_000, 40_000, 50, 150), 1.6)
FAR: Final = Mix("far", H100, sizes(7_000, 9_000, 50, 150), 17.0)
HIDDEN: Final = Mix("hidden", H100, sizes(400, 800, 20, 60), 1.0)
REASONING: Final = Mix("reasoning", H100, _reasoning, 1.0)

ONE: Final = Site((H100,))
TWO: Final = Site((H100,) * 2)
SMALL_ONE: Final = Site((SMALL.profile,))
# 6 to 10 s of 40 streams.
THINKING: Final = Shown(hidden_tokens=(620, 1_040))
UNSHOWN: Final = replace(THINKING, begins=Begins.NEVER)


def _chats(name: str, load: float, site: Site = FLEET, warm_s: float = WARM_S) -> Scene:
    """A tenth is of the high class."""
    return Scene(name, (Open(CHATS, load, replace(PATIENT, high_share=HIGH_SHARE)),), site, warm_s)


def _hidden(name: str, shown: Shown) -> Scene:
    """Everything of an answer but its end is hidden."""
    return Scene(name, (Closed(HIDDEN, 40, replace(PATIENT, shown=shown)),), ONE)


def _long(name: str, *others: Steady) -> Scene:
    chats = Open(CHATS, 1.0 / CHATS.capacity_per_s, replace(PATIENT, tenant="chats"))
    long = Open(LONG, 0.62, replace(PATIENT, tenant="long"))
    return Scene(name, (long, chats, *others), TWO, length_s=140.0)


def _apart() -> tuple[Scene, ...]:
    """Those that are about one thing each."""
    embeddings = replace(PATIENT, tenant="embeddings", shown=EMBEDDING)
    pause = ((0.0, 60.0), (360.0, 420.0))
    plain = Open(CHATS, 0.8, replace(PATIENT, shown=PLAIN))
    stated = replace(PATIENT, max_tokens=32_768)
    mixed = Site((H100, H100, slowed(H100), slowed(H100)))
    gpu = GPUS["70b-4xh100"]
    return (
        Scene("small_cache", (Closed(SMALL, 64),), SMALL_ONE),
        _hidden("thinking", THINKING),
        _hidden("thinking_at_once", replace(THINKING, begins=Begins.AT_ONCE)),
        _hidden("tool_calls", UNSHOWN),
        Scene("after_pause", (Open(SMALL, 0.5, spans=pause),), SMALL_ONE, 360.0, 420.0),
        Scene("reasoning", (Closed(REASONING, 180, stated, think_s=10.0),), TWO, 60.0, 180.0),
        Scene(
            "stranger_giant",
            (Open(CHATS, 0.5 / ENGINES, spans=((BEGIN_S, 90.0),)),),
            ONE,
            BEGIN_S,
            past=Past(120_000, 100, BEGIN_S - 5.0),
        ),
        _long("long_62"),
        Scene("servegen_95", (Recorded(TRACE, 0.95, gpu, 8),), Site((gpu,) * 8), 6.0, 36.0),
        Scene("far", (Open(FAR, 0.6),), replace(FLEET, network_s=0.03, back_s=0.03)),
        Scene("agents_60", (Open(MIXES["agents"], 0.6),)),
        Scene("agents_95", (Open(MIXES["agents"], 0.95),)),
        Scene(
            "embeddings",
            (
                Open(EMBEDDINGS, 0.4, embeddings),
                Open(CHATS, 0.4, replace(PATIENT, tenant="chats")),
            ),
        ),
        Scene(
            "batch_beside",
            (Open(BATCH, 0.5, replace(PATIENT, rank=2)), Open(CHATS, 0.3)),
        ),
        Scene("plain_80", (plain,)),
        Scene("mixed_engines", (Open(CHATS, 0.8 * 0.75),), mixed),
        Scene(
            "decode_80", (Open(MIXES["decode"], 0.8),), Site((MIXES["decode"].profile,) * ENGINES)
        ),
        _chats("unknown_cache", 0.8, replace(FLEET, tells_cache=False)),
        _chats("no_reports", 0.8, replace(FLEET, reports=False)),
        _chats("cold", 0.8, warm_s=0.0),
        _chats("one_engine_95", 0.95 / ENGINES, ONE),
    )


LOADS: Final = (0.3, 0.5, 0.8, 0.95, 1.03, 1.1)
ORDINARY: Final = (
    *(_chats(f"chats_{load * 100:.0f}", load) for load in LOADS),
    *_apart(),
)


# The pressed half ---------------------------------------------------------------------------

FLOODED: Final = ("uniform", "kv", "decode")
# Of the capacity. Two tenants have a half each.
VICTIMS_SHARE: Final = 0.2
OF_VICTIM: Final = Clients(high_share=0.0, tenant=VICTIM)
ATTACKER: Final = Clients(high_share=0.0, tenant="attacker")
LOW: Final = Clients(high_share=0.0)
URGENT: Final = Clients(high_share=1.0)
# They know that their prompts take long.
LONG_S: Final = 30.0
SLOW: Final = replace(OF_VICTIM, patience_s=LONG_S)
TURN_S: Final = 30.0  # when answers become long

KV: Final = MIXES["kv"]
SHORT: Final = Mix("short", KV.profile, sizes(200, 2_000, 20, 60), 80.0)
ENDLESS: Final = Mix("endless", KV.profile, sizes(200, 2_000, 1_500, 3_000), 8.0)
STUFFED: Final = Mix("stuffed", KV.profile, sizes(40_000, 40_000, 50, 150), 2.0)
CROWD: Final = Mix("crowd", H100, sizes(30_000, 30_000, 50, 150), 3.2)


def _site(mix: str) -> Site:
    return Site((MIXES[mix].profile,) * ENGINES)


def loaded(mix: str, load: float) -> Scene:
    """A tenth is of the high class."""
    source = Open(MIXES[mix], load, Clients())
    return Scene(f"{mix}_{load:g}", (source,), _site(mix), length_s=60.0, pressed=True)


def _classes(mix: str) -> Scene:
    """The high class sends 0.3 of the capacity, and all together twice that what there is."""
    source = Open(MIXES[mix], 2.0, Clients(high_share=0.15))
    name = f"classes_{mix}"
    return Scene(name, (source,), _site(mix), length_s=60.0, pressed=True, victim=HIGH)


def _beside(name: str, mix: str, *attacks: Open) -> Scene:
    """A victim beside attacks."""
    victim = Open(MIXES[mix], VICTIMS_SHARE, OF_VICTIM)
    return Scene(name, (victim, *attacks), _site(mix), 8.0, 38.0, pressed=True, victim=VICTIM)


PRESSED: Final = (
    *chain.from_iterable((loaded(mix, 2.0), loaded(mix, 5.0)) for mix in MIXES),
    *(loaded(mix, 1.1) for mix in ("uniform", "skewed", "kv")),
    _classes("uniform"),
    _classes("kv"),
    *(_beside(f"flood_{mix}", mix, Open(MIXES[mix], 10.0, ATTACKER)) for mix in FLOODED),
    # About 60,000 tokens of answers each.
    _beside("giants", "kv", Open(KV, 0.03, replace(ATTACKER, choices=64))),
    replace(
        _beside(
            "surprises",
            "kv",
            Open(SHORT, 0.5, ATTACKER, ((0.0, TURN_S),)),
            Open(ENDLESS, 4.0, ATTACKER, ((TURN_S, inf),)),
        ),
        warm_s=TURN_S,
        length_s=60.0,
    ),
    Scene(
        "starved_40k",
        (Open(STUFFED, 0.1, SLOW), Open(KV, 5.0, ATTACKER)),
        _site("kv"),
        8.0,
        68.0,
        pressed=True,
        victim=VICTIM,
        deadline_s=LONG_S,
    ),
    Scene(
        "crowds_90",
        (Open(CROWD, 1.2, Clients(high_share=0.0, tenants=90)),),
        warm_s=8.0,
        length_s=68.0,
        pressed=True,
    ),
    Scene(
        "long_low",
        (Open(MIXES["decode"], 0.5, URGENT), Open(LONG, 2.0, LOW)),
        warm_s=8.0,
        length_s=38.0,
        pressed=True,
        victim=HIGH,
    ),
    Scene(
        "long_62_attacked",
        (
            Open(LONG, 0.62, replace(PATIENT, tenant=VICTIM)),
            Open(CHATS, 1.0 / CHATS.capacity_per_s, replace(PATIENT, tenant="chats")),
            Steady(20, 1, 2.5, replace(PATIENT, tenant="attacker")),
        ),
        TWO,
        length_s=140.0,
        pressed=True,
        victim=VICTIM,
        deadline_s=LONG_S,
    ),
)
