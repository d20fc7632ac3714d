"""What becomes of a backend that is new beside others, and of one that is worse than they are."""

import logging

import orjson
import pytest

from penstock.balancing.backend import AdminState, Backend, State
from penstock.health.engine import BASES_MAX, read_version
from penstock.health.probes import Outcome
from tests.unit.health.watched import REFUSED, TIMEOUT, Scene


class New(Scene):
    """A scene that notes when its backend is called new."""

    def __init__(self, count: int = 4) -> None:
        super().__init__(count)
        self.told: list[Backend] = []
        self.watch.is_new = self.told.append

    def models(self, **cards: dict[str, object]) -> None:
        cards = cards or {"m": {}}
        told = {name: orjson.dumps({"id": name} | card) for name, card in cards.items()}
        self.ask.ready_is = Outcome(models=told)

    async def goes_down_and_returns(self) -> State:
        self.watch.certain("unreachable")
        return await self.turn(3, step_s=9.0)


@pytest.fixture
async def scene() -> New:
    scene = New()
    scene.models()
    await scene.turn()
    return scene


async def test_one_that_came_to_a_running_pool_begins_slowly() -> None:
    scene = New()
    scene.watch.arrived()
    assert scene.told == [scene.backend]
    assert await scene.turn() is State.WARMING
    assert scene.backend.slow_start is not None
    assert await scene.turn(step_s=30.0) is State.READY


async def test_at_the_start_nobody_is_new() -> None:
    scene = New()
    assert await scene.turn() is State.READY
    assert not scene.told


async def test_one_that_is_worse_stays_out_until_an_operator_wants_it_back(
    scene: New,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert scene.watch.worse("errors 30 % of 40 against 0 % of 300")
    assert scene.backend.state is State.EJECTED
    assert scene.backend.doubted  # it serves when no other can
    (line,) = caplog.messages
    assert line == (
        "backend ejected name=b0 was=ready reason=worse why=errors 30 % of 40 against 0 % of 300"
    )
    assert await scene.turn(100, step_s=10.0) is State.EJECTED
    assert scene.watch.to_return() is None
    scene.ask.live_is = TIMEOUT
    await scene.turn(5, step_s=2.0)
    assert scene.backend.reason == "worse"
    scene.ask.live_is = Outcome()
    scene.watch.accepted()
    assert await scene.turn(3) is State.WARMING
    assert scene.backend.reason == ""
    assert not scene.told  # the operator has decided


@pytest.mark.parametrize(
    ("count", "others_out", "out"),
    [(1, 0, False), (2, 0, True), (4, 1, True), (4, 2, False)],
)
async def test_a_pool_keeps_its_last_backend_and_half_of_its_backends(
    count: int, others_out: int, out: bool
) -> None:
    scene = New(count)
    await scene.turn()
    for peer in scene.peers[1 : 1 + others_out]:
        peer.state = State.EJECTED
    assert scene.watch.worse("errors") is out
    assert (scene.backend.state is State.EJECTED) is out


async def test_another_version_after_an_ejection_is_new(scene: New) -> None:
    assert await scene.goes_down_and_returns() is State.WARMING
    assert not scene.told
    scene.ask.version_is = "2"
    assert await scene.goes_down_and_returns() is State.WARMING
    assert scene.told == [scene.backend]


@pytest.mark.parametrize(
    ("cards", "new"),
    [
        ({"m": {}, "lora": {"parent": "m"}}, False),
        ({"m": {}} | {f"a{n}": {"parent": "m"} for n in range(BASES_MAX)}, False),
        ({"m": {"created": 7}}, False),
        ({"m": {"max_model_len": 8_192}}, True),
        ({"m": {"root": "/models/other"}}, True),
        ({"m": {}, "n": {}}, True),
    ],
)
async def test_other_base_models_are_another_version(
    scene: New, cards: dict[str, dict[str, object]], new: bool
) -> None:
    scene.models(**cards)
    await scene.goes_down_and_returns()
    assert bool(scene.told) is new


async def test_a_version_that_cannot_be_asked_says_nothing(scene: New) -> None:
    for version in (None, "1"):
        scene.ask.version_is = version
        await scene.goes_down_and_returns()
    assert not scene.told


async def test_another_version_after_maintenance_is_new_and_begins_slowly(scene: New) -> None:
    scene.backend.admin_state = AdminState.MAINT
    await scene.turn()
    scene.ask.version_is = "2"
    scene.backend.admin_state = AdminState.READY
    scene.watch.resume()
    assert await scene.turn() is State.WARMING
    assert scene.told == [scene.backend]


async def test_a_worse_one_that_is_another_engine_now_is_judged_anew() -> None:
    for how in ("version", "restart", "gone", "maint"):
        scene = New()
        scene.models()
        await scene.turn()
        assert scene.watch.worse("errors")
        await scene.turn(3)
        assert not scene.told
        if how == "version":
            scene.ask.version_is = "2"
        elif how == "restart":
            scene.backend.restarted()
        elif how == "gone":
            scene.ask.live_is = REFUSED
            await scene.turn()
            assert scene.backend.reason == "unreachable"
            scene.ask.live_is = Outcome()
        else:
            scene.watch.resume()
        assert await scene.turn(4, step_s=7.0) is State.WARMING, how
        assert scene.told == [scene.backend], how


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"version":"0.11.0"}', "0.11.0"),
        (b'{"version":7}', ""),
        (b"[1]", ""),
        (b"<html>", ""),
        (b'{"version":"%b"}' % (b"9" * 4_000), "9" * 64),
    ],
)
def test_what_a_server_says_of_its_version(body: bytes, version: str) -> None:
    assert read_version(body) == version
