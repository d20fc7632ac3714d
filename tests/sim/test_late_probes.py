"""Deep probes that wait behind long prompts, on simulated engines in virtual time."""

from dataclasses import replace
from typing import Final

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease
from penstock.bench.sim.engine import Engine, Sequence
from penstock.bench.sim.profiles import GPUS, Gpu
from penstock.health.probes import Outcome, Task
from penstock.health.stall import EXCUSED_S_MAX, PIECE, PREFILL_S_MAX
from tests.unit.health.watched import HUNG, Backends, Scene

LONG_TOKENS: Final = 300_000


class Probed:
    """A deep probe's own request."""

    answered = False

    def token(self) -> None:
        self.answered = True


class Prompt:
    """A client's request: its lease hears of its tokens."""

    def __init__(self, lease: Lease, asks: "Engined") -> None:
        self._lease = lease
        self._asks = asks

    def token(self) -> None:
        now_s = self._asks.scene.now_s
        self._lease.first_token(now_s)
        self._lease.tokens(1)
        self._lease.complete(now_s)


class Engined(Backends):
    """An engine answers deep probes and reports; `frozen`: it takes everything and does nothing.

    `fills`: frozen as well, but each of its reports tells of a fuller cache; `tells`: it has
    metrics at all.
    """

    def __init__(self, scene: Scene, profile: Gpu) -> None:
        super().__init__()
        self.scene = scene
        self.engine = Engine(profile)
        self.frozen = self.fills = False
        self.tells = True
        self.report_s = 0.0  # until it is given up
        self._filled = 0.0
        self._step_ends_s = 0.0
        self._emissions: list[Sequence] = []

    def submit(self, tokens: int, estimated: int) -> None:
        lease = Lease(
            self.scene.backend,
            Ask("/", prompt_tokens=estimated, stream=True, client="10.0.0.1"),
            self.scene.now_s,
        )
        self.engine.submit(Sequence(tokens, 1, Prompt(lease, self)), self.scene.now_s)

    def until(self, end_s: float, probed: Probed | None = None) -> None:
        """Let the engine work until then, or until the probe has its token."""
        scene = self.scene
        while not self.frozen:
            if self._emissions or self._step_ends_s > scene.now_s:
                if self._step_ends_s > end_s:
                    break
                scene.now_s = max(scene.now_s, self._step_ends_s)
                emissions, self._emissions = self._emissions, []
                for sequence in emissions:
                    sequence.owner.token()
                if probed is not None and probed.answered:
                    return
            took_s, self._emissions = self.engine.step(scene.now_s)
            if not took_s:
                break
            self._step_ends_s = scene.now_s + took_s
        scene.now_s = end_s

    async def deep(
        self, model: str, task: Task | None, timeout_s: float
    ) -> tuple[Task | None, Outcome]:
        self.deep_asked += 1
        self.deep_timeout_s = timeout_s
        probed = Probed()
        sequence = Sequence(1, 1, probed)
        self.engine.submit(sequence, self.scene.now_s)
        self.until(self.scene.now_s + timeout_s, probed)
        if not probed.answered:
            self.engine.abort(sequence)
        return Task.COMPLETION, Outcome() if probed.answered else HUNG

    async def report(self, timeout_s: float, now_s: float) -> EngineReport | None:
        if not self.tells:
            self.scene.now_s += self.report_s
            return None
        engine = self.engine
        self._filled += 0.01 if self.fills else 0.0
        return EngineReport(
            now_s,
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.kv_usage + self._filled,
            prefix_queries_tokens=engine.cache_queries_total,
            generated_tokens=engine.generation_tokens_total,
        )


def engined(name: str) -> tuple[Scene, Engined]:
    scene = Scene()
    asks = Engined(scene, replace(GPUS[name], max_model_len=400_000, kv_tokens=1_200_000))
    scene.ask = asks
    return scene, asks


async def worst_of(scene: Scene, asks: Engined, time_s: float) -> tuple[set[State], float]:
    """The states that it was in for so long, and when it was ejected first."""
    began_s, ejected_s, states = scene.now_s, float("inf"), set()
    while scene.now_s - began_s < time_s:
        states.add(await scene.turn())
        if scene.backend.state is State.EJECTED:
            ejected_s = min(ejected_s, scene.now_s - began_s)
        asks.until(scene.now_s + (0.5 if State.SUSPECT in states else 2.0))
    return states, ejected_s


# The last ones are longer than they look.
@pytest.mark.parametrize(("tells", "looks"), [(True, 1.0), (False, 1.0), (True, 1 / 3)])
@pytest.mark.parametrize("name", sorted(GPUS))
async def test_long_prompts_of_one_client_eject_no_quiet_backend(
    name: str, tells: bool, looks: float
) -> None:
    scene, asks = engined(name)
    asks.tells = tells
    await scene.turn()
    for _ in range(3):
        asks.submit(LONG_TOKENS, int(looks * LONG_TOKENS))
    states, ejected_s = await worst_of(scene, asks, 1_200.0)
    assert State.EJECTED not in states, f"ejected after {ejected_s:.0f} s"
    assert looks < 1.0 or states <= {State.READY}
    assert not scene.backend.own.requests


@pytest.mark.parametrize("fills", [False, True])
async def test_a_zombie_is_out_in_15_s_however_many_prompts_it_takes(fills: bool) -> None:
    scene, asks = engined("70b-4xh100")
    await scene.turn()
    asks.frozen, asks.fills = True, fills
    began_s = scene.now_s
    while scene.backend.state is not State.EJECTED:
        asks.submit(20_000, 20_000)
        await scene.turn(step_s=1.0)
        assert scene.now_s - began_s <= 15.0


@pytest.mark.parametrize("fills", [False, True])
async def test_a_zombie_with_a_long_prompt_is_out_in_bounded_time(fills: bool) -> None:
    scene, asks = engined("70b-4xh100")
    await scene.turn()
    asks.frozen, asks.fills = True, fills
    for _ in range(10):
        asks.submit(LONG_TOKENS, LONG_TOKENS)
    _, ejected_s = await worst_of(scene, asks, 1_200.0)
    prompt_s = scene.backend.head_prefill_s
    assert 100.0 < prompt_s < 120.0
    assert ejected_s < PREFILL_S_MAX + (EXCUSED_S_MAX if fills else prompt_s * PIECE) + 15.0


async def test_a_zombie_is_out_in_15_s_where_its_metrics_hang_too() -> None:
    scene, asks = engined("70b-4xh100")
    await scene.turn()
    asks.frozen, asks.tells, asks.report_s = True, False, 1.0
    scene.backend.report = EngineReport(scene.now_s, running=5)  # others' too
    asks.submit(2_000, 2_000)
    _, ejected_s = await worst_of(scene, asks, 60.0)
    assert ejected_s <= 15.0


async def test_prompts_that_came_by_another_way_explain_the_wait_too() -> None:
    scene, asks = engined("70b-8xh100")
    await scene.turn()
    for _ in range(5):  # 50 s each
        asks.engine.submit(Sequence(LONG_TOKENS, 1, Probed()), scene.now_s)
    scene.backend.report = await asks.report(1.0, scene.now_s)
    states, ejected_s = await worst_of(scene, asks, 300.0)
    assert State.EJECTED not in states, f"ejected after {ejected_s:.0f} s"


async def test_tokens_of_long_ago_excuse_no_late_probe() -> None:
    scene, asks = engined("70b-8xh100")
    await scene.turn()
    asks.submit(100, 100)
    await worst_of(scene, asks, 60.0)
    asks.frozen = True
    asks.submit(100, 100)
    assert scene.backend.state is State.READY
    _, ejected_s = await worst_of(scene, asks, 60.0)
    assert ejected_s <= 15.0
