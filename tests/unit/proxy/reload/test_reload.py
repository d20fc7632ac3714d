"""A reload keeps a pool's policy with what it learnt, changes what the file changed, and ends."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.lease import Lease, Reason
from penstock.balancing.policies import POLICIES
from penstock.balancing.policies.token_cost import TokenCost
from penstock.balancing.speed.compare import SAMPLES_MIN
from penstock.balancing.speed.estimates import PRIOR_STEP_S, PRIOR_WORK_PER_S
from penstock.conf.issues import ConfigError
from penstock.conf.load import Loaded, load
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.reload.reload import READ_S, Reload
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.reload.source import Source
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names

every_policy = pytest.mark.parametrize("policy", POLICIES)
ASK = Ask("/v1/completions", prompt_tokens=100, stream=True)
TURN = ASK.changed(session="s")


class Running:
    """A data plane with one pool, its file, and its reload. Nothing is sent to the backends."""

    def __init__(
        self,
        folder: Path,
        policy: str,
        weights: dict[str, float],
        kind: type[Source] = Source,
        read_s: float = READ_S,
    ) -> None:
        self._path = folder / f"{id(self)}.json"
        self._write(policy, weights)
        source, loop, names = kind(self._path, {}, {}), asyncio.get_running_loop(), Names()
        loaded = source.load()
        first = configure(draft(loaded.settings, loaded.origins, None), loop, names)
        self.metrics = Metrics([])
        self.plane = DataPlane(first, loop=loop, rng=Random(7), metrics=self.metrics)
        self.retirement = Retirement(self.metrics, lambda: self.plane.fleet)
        use, threads = self.plane.use, HandshakeThreads(loop)
        self.reloads = Reload(
            source, self.plane, self.retirement, use, names, threads, read_s=read_s
        )
        self._ready()

    def _write(self, policy: str, weights: dict[str, float], **more: Any) -> None:
        backends = [
            {"name": name, "url": f"http://{name}:1", "weight": weight}
            for name, weight in weights.items()
        ]
        pool = {"name": "p", "policy": policy, "backends": backends}
        self._path.write_bytes(orjson.dumps({"pools": [pool], **more}))

    def _ready(self) -> None:
        for backend in self.backends.values():
            backend.state = State.READY

    async def reload(self, policy: str, weights: dict[str, float], **more: Any) -> None:
        self._write(policy, weights, **more)
        await self.reloads()
        self._ready()

    @property
    def backends(self) -> dict[str, Backend]:
        return {each.name: each for each in self.plane.fleet.backends}

    def choose(self, ask: Ask = ASK) -> Lease:
        return self.plane.gate.choose(ask, 0.0)

    def idle(self, ask: Ask = ASK) -> str:
        """Who gets a request that is over at once."""
        lease = self.choose(ask)
        lease.end(0.0)
        return lease.backend.name


@asynccontextmanager
async def running(folder: Path, policy: str, **weights: float) -> AsyncIterator[Running]:
    started = Running(folder, policy, weights)
    yield started
    started.retirement.close()


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, "token_cost", a=1.0, b=1.0) as started:
        yield started


async def test_all_backends_share_one_part_of_a_turn_after_a_reload_too(tmp_path: Path) -> None:
    async with running(tmp_path, "round_robin", a=1.0, b=1.0) as scene:
        leaving = scene.plane.connections["b"]
        await scene.reload("round_robin", {"a": 1.0, "c": 1.0})
        pools = (leaving, *scene.plane.connections.values())
        assert {id(each.reads) for each in pools} == {id(scene.plane.answer_reads)}


ABC = {"a": 1.0, "b": 1.0, "c": 2.0}


@every_policy
async def test_a_reload_of_the_same_file_changes_no_choice(policy: str, tmp_path: Path) -> None:
    """Of two alike one is reloaded again and again. Both are asked the same."""
    rng = Random(3)
    async with running(tmp_path, policy, **ABC) as left, running(tmp_path, policy, **ABC) as right:
        for number in range(200):
            if number % 60 == 59:
                await right.reload(policy, ABC)
            ask = ASK.sized(
                rng.randint(10, 8_000), session=f"s{rng.randrange(9)}" if number % 3 else None
            )
            held = rng.random() < 0.3
            leases = [each.choose(ask.changed()) for each in (left, right)]
            chosen = {(lease.backend.name, lease.reason) for lease in leases}
            assert len(chosen) == 1, number
            for lease in leases:
                if not held:
                    lease.end(0.0)


async def test_equal_backends_take_turns_across_reloads(it: Running) -> None:
    seen = []
    for _ in range(8):
        seen.append(it.idle())
        await it.reload("token_cost", {"a": 1.0, "b": 1.0})
    assert [set(seen[i : i + 2]) for i in range(0, 8, 2)] == [{"a", "b"}] * 4


async def test_a_slow_backend_is_known_to_be_slow_after_a_reload(it: Running) -> None:
    for backend, slowness in zip(it.backends.values(), (3.0, 1.0), strict=True):
        backend.refresh(0.0)
        for tokens in (500, 2_000, 8_000) * SAMPLES_MIN:
            seconds = PRIOR_STEP_S + tokens / PRIOR_WORK_PER_S
            backend.prefill_speed.observe(float(tokens), slowness * seconds)
    assert Counter(it.idle() for _ in range(40))["b"] >= 38  # the first ones compare
    for _ in range(4):
        await it.reload("token_cost", {"a": 1.0, "b": 1.0})
        assert it.idle() == "b"


async def test_a_session_keeps_its_home(it: Running) -> None:
    home = it.idle(TURN)
    await it.reload("token_cost", {"a": 1.0, "b": 1.0, "c": 1.0})
    lease = it.choose(TURN)
    assert (lease.backend.name, lease.reason) == (home, Reason.AFFINITY)


async def test_new_weights_count_at_once(tmp_path: Path) -> None:
    """One that was light must not wait out the long turn that it had."""
    async with running(tmp_path, "round_robin", a=1.0, b=0.001) as it:
        while it.idle() != "b":
            pass
        await it.reload("round_robin", {"a": 1.0, "b": 3.0})
        assert Counter(it.idle() for _ in range(40))["b"] >= 29
    async with running(tmp_path, "session", a=1.0, b=1.0) as it:
        await it.reload("session", {"a": 1.0, "b": 4.0})
        sessions = [ASK.changed(session=f"s{number}") for number in range(400)]
        assert 290 < Counter(map(it.idle, sessions))["b"] < 350


async def test_strict_changes_and_homes_stay(it: Running) -> None:
    home = it.idle(TURN)
    Lease(it.backends[home], ASK.sized(30_000), 0.0)
    await it.reload("token_cost", {"a": 1.0, "b": 1.0}, affinity={"strict": True})
    assert it.idle(TURN) == home
    await it.reload("token_cost", {"a": 1.0, "b": 1.0})
    assert it.idle(TURN) != home


async def test_a_backend_that_leaves_is_forgotten_and_the_others_are_not(tmp_path: Path) -> None:
    async with running(tmp_path, "token_cost", a=1.0, b=1.0, c=1.0) as it:
        for _ in range(40):
            it.idle()
        policy, gone = it.plane.fleet.pools[0].policy, it.backends["c"]
        assert isinstance(policy, TokenCost)
        assert gone in policy._seen
        await it.reload("token_cost", {"a": 1.0, "b": 1.0})
        assert it.plane.fleet.pools[0].policy is policy
        assert set(policy._seen) == set(it.backends.values())


async def test_all_backends_are_replaced_while_one_is_tried(it: Running) -> None:
    for _ in range(5):
        it.idle()
    policy = it.plane.fleet.pools[0].policy
    assert isinstance(policy, TokenCost)
    policy._trying = True  # the last choice went where little is known
    await it.reload("token_cost", {"c": 1.0, "d": 1.0})
    assert {it.idle() for _ in range(20)} == {"c", "d"}


async def test_another_policy_begins_anew(it: Running) -> None:
    it.idle(TURN)
    await it.reload("least_tokens", {"a": 1.0, "b": 1.0})
    assert it.plane.configuration.sessions is None
    await it.reload("token_cost", {"a": 1.0, "b": 1.0})
    assert it.choose(TURN).reason is Reason.COST


# Files that do not open ------------------------------------------------------------------------

opens = threading.Event()


@dataclass(frozen=True, slots=True)
class OfADeadServer(Source):
    """Its files open while `opens` is set."""

    def load(self) -> Loaded:
        opens.wait()
        return load(self.path, self.environ, self.flags)


async def test_a_file_that_does_not_open_is_told_and_the_next_reload_works(tmp_path: Path) -> None:
    """Nor does the end of the process wait for it."""
    opens.set()
    scene = Running(tmp_path, "token_cost", ABC, OfADeadServer, read_s=0.01)
    opens.clear()
    others = set(threading.enumerate())  # another test's may not have ended yet
    try:
        with pytest.raises(ConfigError, match="took more than"):
            await scene.reloads()
        assert "does one not open" in scene.reloads.failed[0]
        assert not scene.metrics.config_reload_success
        (stuck,) = [each for each in threading.enumerate() if each not in others]
        assert (stuck.name, stuck.daemon) == ("beside", True)
    finally:
        opens.set()
    scene.reloads._read_s = 60.0
    await scene.reloads()
    assert scene.reloads.failed == ()
    assert scene.metrics.config_reload_success
