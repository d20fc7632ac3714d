"""Transcripts of canaries: what is drawn to them, what counts, and how they move."""

import logging
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.canary.metrics import Ending
from penstock.balancing.canary.steps import Canary, Stage
from penstock.balancing.lease import Lease, Reason
from penstock.balancing.routes.request import RouteRequest
from penstock.conf.canary import CanarySettings
from penstock.proxy.admin.listings import canary_listing
from penstock.proxy.data.canaries import VERSIONS_MAX, RolledBack
from penstock.proxy.data.evidence import evidence_of
from tests.unit.proxy.data.playbook import Client, chat, plain
from tests.unit.proxy.data.test_routing import Routed

ROUTE: dict[str, Any] = {
    "name": "versions",
    "to": [{"pool": "small"}],
    "sticky": "request",
    "canary": {
        "pool": "large",
        "steps": [50, 100],
        "every_s": 5,
        "judge": {"min_requests": 20, "clients_min": 1, "errors": 0.05}
        | dict.fromkeys(("broken", "empty", "refused", "ttft", "itl", "length")),
    },
}
ENOUGH = 600


@pytest.fixture
def play() -> Routed:
    return Routed(ROUTE)


def canary(play: Routed) -> Canary:
    return play.plane.canaries.trials["versions"].canary


def asks(play: Routed, head: bytes = b"") -> tuple[Client, str]:
    """A client's request, and the backend that it was sent to."""
    client = play.client if not play.client.closed else play.connects()
    play.client = client
    client.sends(chat(head=head))
    exchange = client.exchange
    return client, exchange.request.record.backend


def one(play: Routed, *, fails: str = "") -> str:
    """One request. It fails at this backend, and is answered by others."""
    client, backend = asks(play)
    play.fails(backend) if backend == fails else play.answers(backend)
    assert client.written
    return backend


def moves_on(play: Routed, time_s: float = 1.0) -> None:
    """In one step, and the proxy measures."""
    play.loop.now_s += time_s
    play.plane.measure(play.loop.now_s)


def goes_on(play: Routed, requests: int = ENOUGH, *, fails: str = "") -> list[str]:
    """Requests, ten in a second."""
    drawn = []
    for _ in range(requests):
        drawn.append(one(play, fails=fails))
        moves_on(play, 0.1)
    return drawn


def test_a_version_that_is_no_worse_gets_everything(play: Routed) -> None:
    drawn = goes_on(play)
    assert canary(play).stage is Stage.PROMOTED, canary(play).why
    assert 0.35 < drawn[:100].count("b3") / 100 < 0.65
    assert set(drawn[-50:]) == {"b3"}


def test_a_version_that_fails_gets_nothing_any_more(
    play: Routed, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        drawn = goes_on(play, 200, fails="b3")
    assert canary(play).stage is Stage.ROLLED_BACK
    assert drawn.count("b3") < 60
    assert "b3" not in drawn[-50:]
    (line,) = [each.getMessage() for each in caplog.records if "rolled_back" in each.getMessage()]
    assert "route=versions stage=rolled_back percent=0 why=worse: none of its 20" in line
    (told,) = canary_listing(play.plane.canaries.trials.values(), play.loop.now_s)
    assert (told["stage"], told["percent"]) == ("rolled_back", 0.0)


def test_an_operators_word_counts_at_once(play: Routed) -> None:
    play.plane.canaries.order("versions", "promote")
    assert {one(play) for _ in range(20)} == {"b3"}
    play.plane.canaries.order("versions", "abort")
    assert "b3" not in {one(play) for _ in range(20)}
    play.plane.canaries.order("versions", "restart")
    assert "b3" in {one(play) for _ in range(20)}
    assert play.plane.canaries.order("other", "abort") is None


SETTINGS = CanarySettings.model_validate(ROUTE["canary"])


def reload(play: Routed, **changes: Any) -> None:
    """Take a configuration in which the canary's settings are others."""
    use(play, SETTINGS.model_copy(update=changes))


def use(play: Routed, canary: CanarySettings | None) -> None:
    """Take a configuration with this canary."""
    route = play.plane.settings.routes[0].model_copy(update={"canary": canary})
    play.reloads(routes=(route,))


@pytest.mark.parametrize(("word", "stage"), [("abort", "aborted"), ("promote", "promoted")])
def test_a_reload_takes_back_no_decision(play: Routed, word: str, stage: str) -> None:
    play.plane.canaries.order("versions", word)
    reload(play, every_s=7.0)
    assert canary(play).stage.value == stage
    assert canary(play).settings.every_s == 7.0


def test_what_was_drawn_to_another_version_says_nothing_of_this_one(play: Routed) -> None:
    client, backend = asks(play)
    reload(play, model="v3")
    play.answers(backend)
    assert client.written
    judge = canary(play).judge
    assert judge.canary.number + judge.stable.number == 0


def test_an_attempt_that_another_hid_is_an_error_of_its_version() -> None:
    play = Routed(ROUTE | {"canary": ROUTE["canary"] | {"steps": [0.1, 100]}})
    client, backend = asks(play)
    exchange = client.exchange
    request = exchange.request
    play[backend].sends(plain("502 Bad Gateway"))
    other = request.record.backend
    play.answers(other)
    way = request.way
    assert way is not None
    assert way.draw is not None
    lease = Lease(play.backends[0], request.ask, play.loop.now_s, Reason.COST)
    found = evidence_of(request, way, way.draw, lease)
    lease.end(play.loop.now_s)
    assert found is not None
    assert found.ending is Ending.ERROR


def test_a_key_that_begins_oddly_is_a_key() -> None:
    ask = Ask("/v1/chat/completions", session="\0a")
    seen = RouteRequest(ask, lambda _: None, draw=1)
    assert seen.hashed_key("session") is not None
    assert seen.hashed_key("request") is None


def few_keys(play: Routed, on_canary: Callable[[Routed, Client], None]) -> None:
    """Twelve sessions, each of which counts as one failure. `on_canary`: what happens there."""
    for number in range(90):
        client, backend = asks(play, head=b"x-session-id: %d\r\n" % (number % 12))
        if backend == "b3":
            on_canary(play, client)
        else:
            play.answers(backend)
        moves_on(play, 0.2)


def test_a_version_that_serves_nobody_goes_back_though_its_keys_are_few() -> None:
    play = Routed(ROUTE | {"sticky": "session"})
    few_keys(play, lambda play, client: play["b3"].sends(plain("500 Internal Server Error")))
    assert canary(play).stage is Stage.ROLLED_BACK, canary(play).why
    assert "requests was served" in canary(play).why


def test_a_version_that_serves_nobody_goes_back_also_behind_one_gateway() -> None:
    judge = ROUTE["canary"]["judge"] | {"clients_min": 2}
    play = Routed(ROUTE | {"canary": ROUTE["canary"] | {"judge": judge}})
    drawn = goes_on(play, 700, fails="b3")
    assert canary(play).stage is Stage.ROLLED_BACK, canary(play).why
    assert f"none of its {drawn.count('b3')} requests was served" in canary(play).why
    assert "b3" not in drawn[620:]


@pytest.mark.parametrize("leaves", [True, False], ids=["by leaving", "by what is refused"])
def test_nobody_rolls_it_back(leaves: bool) -> None:
    play = Routed(ROUTE | {"sticky": "session"})
    refused = plain("400 Bad Request")
    few_keys(play, lambda play, client: client.closes() if leaves else play["b3"].sends(refused))
    assert canary(play).stage in (Stage.RUNNING, Stage.HELD), canary(play).why


@pytest.mark.parametrize("between", [None, SETTINGS.model_copy(update={"model": "v3"})])
def test_a_version_that_was_rolled_back_stays_so_when_it_is_dropped_and_added_again(
    play: Routed, between: CanarySettings | None
) -> None:
    goes_on(play, 200, fails="b3")
    why = canary(play).why
    assert canary(play).stage is Stage.ROLLED_BACK
    use(play, between)
    if between is not None:
        assert canary(play).stage is Stage.RUNNING  # another version
    use(play, SETTINGS)
    assert (canary(play).stage, canary(play).why) == (Stage.ROLLED_BACK, why)
    assert "b3" not in {one(play) for _ in range(20)}
    play.plane.canaries.order("versions", "restart")
    use(play, None)
    use(play, SETTINGS)
    assert canary(play).stage is Stage.RUNNING  # an operator has said so
    assert "b3" in {one(play) for _ in range(20)}


@pytest.mark.parametrize("dropped", [True, False])
def test_a_version_that_was_rolled_back_stays_so_over_a_restart(
    play: Routed, dropped: bool
) -> None:
    """Also if it was dropped before, or of its roll-back only the canary was kept."""
    goes_on(play, 200, fails="b3")
    if dropped:
        use(play, None)
    kept = orjson.loads(orjson.dumps(play.plane.canaries.to_state()))
    again = Routed(ROUTE)
    if dropped:
        use(again, None)
        again.plane.canaries.resume(kept)
    else:
        again.plane.canaries.resume({"versions": kept["versions"]})
        use(again, None)
    use(again, SETTINGS)
    assert canary(again).stage is Stage.ROLLED_BACK
    again = Routed(ROUTE)  # it is there again at the start
    again.plane.canaries.resume(kept)
    assert canary(again).stage is Stage.ROLLED_BACK


@pytest.mark.parametrize("word", ["abort", "promote", "restart"])
def test_only_promote_and_restart_let_a_version_go_on_that_was_rolled_back(
    play: Routed, word: str
) -> None:
    goes_on(play, 200, fails="b3")
    play.plane.canaries.order("versions", word)
    reload(play, every_s=7.0)
    wanted = {"abort": Stage.ABORTED, "promote": Stage.PROMOTED, "restart": Stage.RUNNING}
    assert canary(play).stage is wanted[word]
    use(play, None)
    use(play, SETTINGS)
    assert canary(play).stage is (Stage.ROLLED_BACK if word == "abort" else Stage.RUNNING)


def test_what_was_rolled_back_is_bounded_and_odd_files_are_no_harm() -> None:
    rolled_back = RolledBack()
    rolled_back.read("odd")
    rolled_back.read([1, ["a"], ["r", "p", 3, "why"], ["r", "p", None, "why"]])
    assert rolled_back.why(("r", "p", None)) == "why"
    for number in range(VERSIONS_MAX):
        rolled_back.note((f"r{number}", "p", "m"), "worse")
    assert rolled_back.why(("r", "p", None)) is None
    assert rolled_back.why(("r0", "p", "m")) == "worse"
    assert len(rolled_back.to_state()) == VERSIONS_MAX


def test_what_waits_while_the_process_does_not_run_shows_nothing(play: Routed) -> None:
    goes_on(play, 60)
    hanging = []
    for _ in range(10):
        hanging.append(asks(play)[0])
        play.client = play.connects()
    judge = canary(play).judge
    before = judge.canary.number + judge.stable.number
    play.plane.canaries.slept()
    for _ in range(12):
        moves_on(play)
    assert canary(play).judge.canary.number + canary(play).judge.stable.number == before
    assert canary(play).judge is judge


def test_a_second_attempt_that_hangs_counts_while_it_waits() -> None:
    """Its first one was refused by a backend of the canary at once."""
    play = Routed(
        ROUTE | {"to": [{"pool": "large"}], "canary": ROUTE["canary"] | {"pool": "small"}}
    )
    goes_on(play, 60)
    moves_on(play, 60.0)
    client, first = asks(play)
    while first == "b3":
        play.answers(first)
        client, first = asks(play)
    judge = canary(play).judge
    before = judge.canary.number
    moves_on(play)
    play[first].sends(plain("502 Bad Gateway"))
    exchange = client.exchange
    assert exchange.request.record.backend not in (first, "b3")
    for waited_s in range(1, 13):
        moves_on(play)
        assert judge.canary.number == before + (waited_s >= 10)
    client.closes()
    assert judge.canary.number == before + 1


def test_a_request_that_hangs_on_the_canary_counts_while_it_waits(play: Routed) -> None:
    """Every second one of its requests gets no token, and their clients are patient."""
    hanging = []
    for number in range(400):
        client, backend = asks(play)
        if backend == "b3" and number % 2:
            hanging.append(client)
            play.client = play.connects()
        else:
            play.answers(backend)
        moves_on(play, 0.1)
        if canary(play).stage is Stage.ROLLED_BACK:
            break
    assert canary(play).why.startswith("worse: far too long waits ")
    assert 10 < len(hanging) < 120
