"""Transcripts of requests of which something is cut because others wait."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.balancing.admission.degradation import HOLD_S, Step
from penstock.balancing.backend import State
from penstock.conf.admission import AdmissionSettings
from penstock.proxy.admin.listings import queue_listing
from penstock.proxy.telemetry.access_log import add_request
from tests.unit.proxy.data.playbook import Client, Play, chat, plain, pool

# A prompt of some 5,000 tokens: more than a backend is sent beforehand.
LONG = "all work and no play " * 1_000
CAP: dict[str, Any] = {"class": "standard", "pressure": 0.001, "max_tokens": 512}
AWAY: dict[str, Any] = {"class": "standard", "pressure": 0.001, "fall_back": True}
SHORT: dict[str, Any] = {"class": "standard", "pressure": 0.001, "prompt_tokens": 1_000}


class Crowd(Play):
    """One request after another of the same client, before busy backends."""

    def __init__(self, *steps: dict[str, Any], backends: int = 1, **settings: Any) -> None:
        super().__init__(backends, admission={"degrade": list(steps)}, **settings)
        busy = len(self.backends[:1] if settings else self.backends)
        for _ in range(busy + 1):
            another(self)
        assert self.plane.admission.waiting == 1
        self.happened()

    def reload(self, *steps: dict[str, Any]) -> None:
        """Take a configuration with these steps."""
        self.reloads(admission=AdmissionSettings.model_validate({"degrade": list(steps)}))


@pytest.fixture
def play() -> Crowd:
    return Crowd(CAP)


def another(play: Crowd, *fields: str, head: bytes = b"", content: str = LONG) -> Client:
    client = play.connects()
    client.sends(chat(*fields, head=head, content=content))
    return client


def answer(play: Crowd, name: str = "b1") -> None:
    play.answers(name)
    play.happened()


def record_of(client: Client) -> Any:
    return client.exchange.request.record


def test_the_answer_to_one_that_comes_while_another_waits_is_capped_and_says_so(
    play: Crowd,
) -> None:
    client = another(play, '"max_tokens":4096', '"odd" : [1.50, "\\u00e4"]')
    record = record_of(client)
    answer(play)
    answer(play)
    sent = play["b1"].body
    assert b'"max_tokens":512,"odd" : [1.50, "\\u00e4"]' in sent  # other bytes are the client's
    assert sent.count(b"max_tokens") == 1
    assert b'"stream_options":{"include_usage":true}' in sent  # as without steps
    answer(play)
    assert b"x-penstock-degraded: max_tokens=512" in client.written
    assert play.metrics.degraded["max_tokens",] == 1
    line: dict[str, object] = {}
    add_request(line, record, None, stream=True)
    assert line["degraded"] == "max_tokens=512"


def test_those_that_came_before_are_as_they_were(play: Crowd) -> None:
    answer(play)
    assert b"max_tokens" not in play["b1"].body
    assert play.metrics.degraded["max_tokens",] == 0


def test_what_admission_thinks_of_the_answer_is_what_is_sent(play: Crowd) -> None:
    client = another(play, '"max_tokens":4096', '"n":2')
    exchange = client.exchange
    ask = exchange.request.ask
    assert (ask.max_tokens, ask.choices) == (512, 2)
    assert ask.output_tokens <= 512
    queued = exchange._entry._queued
    assert queued is not None
    assert queued.ask is ask


def test_one_that_asks_for_less_or_is_in_another_class_is_not_touched(play: Crowd) -> None:
    batch = b"x-penstock-priority: batch\r\n"
    assert record_of(another(play, '"max_tokens":100')).degraded == ""
    assert record_of(another(play, '"max_tokens":4096', head=batch)).degraded == ""


def test_a_prompt_that_is_too_long_for_now_is_refused_with_the_length_that_is_taken() -> None:
    play = Crowd(SHORT)
    client = another(play)
    assert play.happened() == ["client got 413, context_too_long_now", "counted 413 nobody"]
    assert b"takes prompts of up to 1000 tokens" in client.written
    hint = int(client.written.partition(b"retry-after: ")[2].partition(b"\r\n")[0])
    assert HOLD_S <= hint <= 2 * HOLD_S + 1
    assert play.metrics.degraded["prompt_tokens",] == 1
    short = another(play, content="x")
    assert b"413" not in short.written


def test_a_later_attempt_keeps_the_cap_of_the_first() -> None:
    play = Crowd(CAP, backends=2)
    client = another(play, '"max_tokens":4096')
    record = record_of(client)
    for _ in range(2):
        answer(play)
    first = next(name for name in ("b1", "b2") if b'"max_tokens":512' in play[name].body)
    other = {"b1": "b2", "b2": "b1"}[first]
    answer(play, other)
    play[first].sends(plain("503 Busy"))
    play.happened()
    assert b'"max_tokens":512' in play[other].body
    assert play[other].body.count(b"max_tokens") == 1
    answer(play, other)
    assert record.attempts == 2
    assert b"x-penstock-degraded: max_tokens=512" in client.written
    assert play.metrics.degraded["max_tokens",] == 1


def test_a_stream_that_gets_its_200_while_it_waits_is_told(play: Crowd) -> None:
    client = another(play, '"max_tokens":4096')
    play.passes(21.0)
    assert client.written.startswith(b"HTTP/1.1 200")
    assert b"x-penstock-degraded: max_tokens=512" in client.written
    assert b": ping" in client.written


def test_new_steps_are_for_what_comes_after(play: Crowd) -> None:
    before = another(play, '"max_tokens":4096')
    play.reload(CAP | {"max_tokens": 64})
    after = another(play, '"max_tokens":4096')
    play.reload()
    last = another(play, '"max_tokens":4096')
    told = [record_of(client).degraded for client in (before, after, last)]
    assert told == ["max_tokens=512", "max_tokens=64", ""]


def test_what_was_read_before_there_were_steps_is_not_touched() -> None:
    play = Crowd()
    play.plane.degradation.follow((Step(1, 0.001, max_tokens=512),))
    client = another(play, '"max_tokens":4')
    assert record_of(client).degraded == ""
    answer(play)
    assert b"512" not in play["b1"].body


def test_the_pressure_is_told_for_each_pool_and_class(play: Crowd) -> None:
    told = {(pool, name): pressed for pool, name, pressed in play.plane.pressures()}
    assert {name for _, name in told} == {"interactive", "standard", "batch"}
    (pool,) = {pool for pool, _ in told}
    assert 0.0 < told[pool, "standard"] < 1.0
    listing: Any = asyncio.run(queue_listing(play.plane))
    assert listing["pools"][0]["pressure"] == {
        name: pytest.approx(pressed, abs=0.001) for (_, name), pressed in told.items()
    }


def pools_of(*names: str) -> list[dict[str, Any]]:
    """Pools of one backend each: b1, b2 and so on."""
    return [pool(name, at, policy="token_cost") for at, name in enumerate(names, 1)]


class TwoPools(Crowd):
    """Pool `large` with b1, which is busy, and pool `small` with b2, which is for its overload."""

    def __init__(
        self, *steps: dict[str, Any], on: str = "overload", more: Sequence[dict[str, Any]] = ()
    ) -> None:
        """`more`: routes that come first."""
        fallback = {"pool": "small", "model": "mini", "on": [on]}
        super().__init__(
            *steps,
            backends=2,
            pools=pools_of("large", "small"),
            routes=[*more, {"name": "all", "to": [{"pool": "large"}], "fallbacks": [fallback]}],
        )


def test_while_others_wait_a_request_goes_to_the_fall_back_that_costs_less() -> None:
    play = TwoPools(AWAY)
    client = another(play)
    record = record_of(client)
    assert (record.degraded, record.fell_back) == ("fall_back", "overload")
    assert play.model("b2") == "mini"
    answer(play, "b2")
    assert b"x-penstock-degraded: fall_back" in client.written
    assert b"x-penstock-model: mini" in client.written
    assert play.metrics.degraded["fall_back",] == 1


def test_one_stays_where_the_fall_back_costs_as_much() -> None:
    play = TwoPools(AWAY)
    told = [record_of(another(play)).degraded for _ in range(4)]
    # Each that leaves makes the other pool dearer.
    assert told[0] == "fall_back"
    assert "" in told[1:]


def test_nobody_is_sent_where_others_wait() -> None:
    play = TwoPools(
        AWAY, more=[{"name": "own", "match": {"model": "mini"}, "to": [{"pool": "small"}]}]
    )
    own = [another(play, '"model":"mini"') for _ in range(2)]
    assert play.plane.admission.pools["small"].queue.waiting == 1
    # They wait here for longer than they would there.
    assert [record_of(another(play)).degraded for _ in range(5)] == [""] * 5
    assert [record_of(each).degraded for each in own] == ["", ""]


@pytest.mark.parametrize(("pressure", "on"), [(0.001, "errors"), (1.0, "overload")])
def test_only_a_fall_back_for_overload_relieves_and_only_at_the_pressure_of_the_step(
    pressure: float, on: str
) -> None:
    play = TwoPools(AWAY | {"pressure": pressure}, on=on)
    assert record_of(another(play)).degraded == ""


def test_in_the_other_pool_its_steps_are_in_force_by_its_own_pressure() -> None:
    play = TwoPools(AWAY, CAP)
    client = another(play, '"max_tokens":4096')
    assert record_of(client).degraded == "fall_back"  # nothing waits there


def test_a_fall_back_that_cannot_serve_hides_no_later_one() -> None:
    play = Crowd(
        AWAY,
        backends=3,
        pools=pools_of("large", "small", "dead"),
        routes=[
            {
                "name": "all",
                "to": [{"pool": "large"}],
                "fallbacks": [{"pool": to, "on": ["overload"]} for to in ("dead", "small")],
            }
        ],
    )
    play.backends[2].state = State.EJECTED
    assert record_of(another(play)).degraded == "fall_back"
