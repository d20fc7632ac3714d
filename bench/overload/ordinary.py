"""The ordinary half of the panel: patient clients below the capacity, or little above it.

Nobody should notice admission here. Where an engine has room, nothing should wait.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from penstock.bench.overload.calls import HIGH_SHARE
from penstock.bench.overload.mixes import ENGINES, H100, MIXES, Mix
from penstock.bench.overload.scene import FLEET, Past, Scene
from penstock.bench.overload.shown import EMBEDDING, PLAIN, Begins, Shown
from penstock.bench.overload.site import Site
from penstock.bench.overload.source import PATIENT, Closed, Open, Recorded, Steady
from penstock.bench.sim.profiles import GPUS, slowed

# Beside the repository, as for `make bench-routing`.
TRACES: Final = Path(__file__).resolve().parents[3] / "shared" / "traces"
TRACE: Final = TRACES / "servegen-language-m-large.day3-12to18h.jsonl.gz"
BEGIN_S: Final = 10.0


def sizes(
    least: int, most: int, shortest: int, longest: int
) -> Callable[[Random], tuple[int, int]]:
    """Prompts and answers from one size to another."""
    return lambda rng: (rng.randint(least, most), rng.randint(shortest, longest))


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


def _chats(name: str, load: float, site: Site = FLEET, warm_s: float = 20.0) -> Scene:
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
