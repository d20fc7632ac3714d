"""A backend that fails one kind of request: the probe that judges a row asks for that kind."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import State
from penstock.balancing.lease import Lease
from penstock.health.machine import REQUESTS_FALL
from penstock.health.probes import Outcome, Task
from tests.unit.health.watched import FAILING, HUNG, Scene

CHAT = "/v1/chat/completions"
CLIENT = "10.0.0.1"


def request(scene: Scene, path: str = CHAT, number: int = 0) -> Lease:
    ask = Ask(path, prompt_tokens=100, stream=True, client=CLIENT)
    return Lease(scene.peers[number], ask, scene.now_s)


async def failing(count: int, path: str = CHAT) -> Scene:
    """So many of one client's have failed here, and its peers serve them."""
    scene = Scene()
    await scene.turn()
    served = request(scene, path, number=1)
    served.first_token(scene.now_s)
    served.complete(scene.now_s)
    fail(scene, count, path)
    return scene


def fail(scene: Scene, count: int, path: str = CHAT) -> None:
    for _ in range(count):
        request(scene, path).fail(scene.now_s)
        scene.watch.requests_failed()


async def test_a_backend_that_fails_only_chats_is_out_behind_one_address() -> None:
    scene = await failing(2)
    scene.ask.deep_of[Task.CHAT] = FAILING
    assert await scene.turn() is State.SUSPECT
    assert scene.backend.failures_in_row == 2, "the usual probe clears nobody"
    assert await scene.turn() is State.EJECTED
    assert scene.backend.reason == "failing"
    scene = await failing(REQUESTS_FALL)
    scene.ask.deep_of[Task.CHAT] = FAILING
    assert await scene.turn() is State.EJECTED


async def test_one_failed_chat_of_ours_is_not_enough() -> None:
    scene = await failing(2)
    scene.ask.deep_of[Task.CHAT] = FAILING
    assert await scene.turn() is State.SUSPECT
    scene.ask.deep_of.clear()
    assert await scene.turn() is State.READY
    assert scene.backend.failures_in_row == 0


async def test_a_chat_that_passes_clears_the_client() -> None:
    scene = await failing(REQUESTS_FALL)
    assert await scene.turn() is State.READY
    assert scene.ask.tasks_were == [Task.CHAT]
    assert scene.backend.failures_in_row == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/audio/transcriptions", ""])
async def test_a_kind_that_cannot_be_asked_is_as_any_other(path: str) -> None:
    scene = await failing(REQUESTS_FALL, path)
    assert await scene.turn() is State.READY
    assert scene.ask.deep_asked == 1
    assert scene.backend.failures_in_row == 0


async def test_a_kind_that_is_not_served_here_leaves_it_to_the_usual_probe() -> None:
    scene = await failing(REQUESTS_FALL)
    scene.ask.deep_of[Task.CHAT] = Outcome("status_404", busy=True)
    assert await scene.turn() is State.READY
    assert scene.ask.tasks_were == [Task.CHAT, None]
    assert scene.backend.failures_in_row == 0


async def test_a_kind_that_no_peer_serves_accuses_nobody() -> None:
    """A client picks what fails everywhere: the probe of it fails at healthy backends, too."""
    scene = Scene()
    await scene.turn()
    scene.ask.deep_of[Task.CHAT] = FAILING
    fail(scene, REQUESTS_FALL)
    assert await scene.turn(5) is State.READY
    assert scene.backend.failures_in_row == 0


async def test_a_chat_that_hangs_while_streams_go_on_accuses_nobody() -> None:
    scene = await failing(REQUESTS_FALL)
    scene.ask.deep_of[Task.CHAT] = HUNG
    lease = request(scene)
    lease.first_token(scene.now_s)
    scene.ask.during_deep = lambda: lease.tokens(1)
    assert await scene.turn() is State.READY


async def test_both_probes_wait_once_for_the_prompt_at_work() -> None:
    scene = await failing(2)
    scene.ask.deep_is = HUNG
    scene.lease(tokens=100_000)  # 17 s by the prior
    began_s, given_s = scene.now_s, list[float]()

    def wait() -> None:
        given_s.append(scene.ask.deep_timeout_s)
        scene.now_s += given_s[-1]

    scene.ask.during_deep = wait
    await scene.turn()
    assert len(given_s) == 2
    assert given_s[1] == 4.0
    assert scene.now_s - began_s < 30.0


async def test_a_dead_engine_is_out_no_later_for_it() -> None:
    scene = await failing(2)
    scene.ask.deep_is = HUNG
    await scene.turn()
    assert await scene.turn() is State.EJECTED


async def test_many_paths_are_not_all_kept() -> None:
    scene = Scene()
    for number in range(1_000):
        lease = request(scene, f"/{number}")
        lease.first_token(scene.now_s)
        lease.complete(scene.now_s)
    assert len(scene.backend.served) <= 64


async def test_a_reranker_is_probed_by_what_it_does() -> None:
    """It does nothing of what is usual, so without that any row would be believed."""
    scene = await failing(2, "/rerank")
    scene.ask.task_is = Task.NONE
    await scene.turn(10, step_s=2.0)
    fail(scene, REQUESTS_FALL, "/rerank")
    assert scene.backend.state is State.EJECTED, "nobody can tell"
    scene = await failing(0, "/rerank")
    scene.ask.task_is = Task.NONE
    await scene.turn(10, step_s=2.0)
    fail(scene, REQUESTS_FALL - 1, "/rerank")
    assert await scene.turn() is State.READY
    fail(scene, 1, "/rerank")
    assert scene.backend.state is State.READY, "a probe could tell"
