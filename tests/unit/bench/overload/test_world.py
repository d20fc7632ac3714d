"""What a world can be told of its engines, its network and how answers show themselves."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.balancing.lease import Lease
from penstock.bench.overload.calls import Call, Clients, Loop
from penstock.bench.overload.mixes import EMBEDDING, H100, MIXES, PLAIN, Begins, Shown
from penstock.bench.overload.world import Site, World

ONE = Site((H100,))
HIDDEN = Shown(hidden_tokens=(90, 90))


def world(site: Site = ONE, *, enabled: bool = False) -> World:
    return World(site, enabled=enabled, seed=1)


def call(at_s: float = 0.0, **more: Any) -> Call:
    return replace(Call(at_s, 1_000, 100, patience_s=60.0, retries=0), **more)


def played(one: Call, site: Site = ONE) -> Call:
    """Alone. Every backend has nothing of it afterwards."""
    there = world(site)
    there.run([one], 60.0)
    assert all(backend.own.idle for backend in there.backends)
    return one


def test_a_stream_shows_its_first_token() -> None:
    one = played(call())
    assert 0.0 < one.ttft_s < 0.1
    assert one.e2e_s == pytest.approx(one.ttft_s + 99 * one.tpot_s)


def test_a_plain_answer_shows_all_at_its_end() -> None:
    one = played(call(shown=PLAIN))
    assert one.ttft_s == one.e2e_s == pytest.approx(played(call()).e2e_s)


def test_embeddings_generate_nothing() -> None:
    one = played(call(shown=EMBEDDING, output_tokens=1))
    assert one.ttft_s == one.e2e_s == pytest.approx(played(call()).ttft_s)


def test_hidden_tokens_come_before_the_first_that_is_shown() -> None:
    one, open_one = played(call(shown=HIDDEN, hidden_tokens=90)), played(call())
    assert one.ttft_s == pytest.approx(open_one.ttft_s + 90 * open_one.tpot_s, rel=0.001)
    assert one.e2e_s == pytest.approx(open_one.e2e_s)


@pytest.mark.parametrize(
    ("begins", "at_s"),
    [(Begins.NEVER, []), (Begins.AT_ONCE, [0.001]), (Begins.WITH_FIRST_TOKEN, [None])],
)
def test_a_lease_is_told_that_its_answer_has_begun(
    begins: Begins, at_s: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(Lease, "answering", lambda _, now_s: told.append(now_s), raising=False)
    played(call(shown=replace(HIDDEN, begins=begins), hidden_tokens=90))
    assert told == [played(call()).ttft_s if each is None else each for each in at_s]


def test_tokens_come_back_late_from_far() -> None:
    far = played(call(), replace(ONE, network_s=0.03, back_s=0.03))
    near = played(call())
    assert far.ttft_s == pytest.approx(near.ttft_s + 0.059)
    assert far.tpot_s == pytest.approx(near.tpot_s)


def test_choices_are_one_request_with_one_prompt() -> None:
    there = world()
    one = call(choices=8)
    log = there.run([one], 60.0)
    assert sum(tokens for _, tokens in log.tokens) == 1_000 + 8 * 100
    assert there.engines[0].requests_total == 8
    assert there.engines[0].step_tokens_total < 2_000  # the engine has the prompt once
    assert there.engines[0].cache.usage == 0.0
    assert there.backends[0].own.idle
    assert one.good


def test_a_request_is_over_when_its_last_choice_is() -> None:
    all_at_once = played(call(choices=8))
    by_halves = played(call(choices=8), Site((replace(H100, max_num_seqs=4),)))
    assert by_halves.e2e_s == pytest.approx(2.0 * all_at_once.e2e_s, rel=0.1)


def test_a_stranger_is_only_seen_in_reports() -> None:
    there = world()
    there.send_past(0, 1_000, 500, 0.0)
    log = there.run([], 3.0)
    assert log.calls == []
    assert there.backends[0].own.idle
    assert there.backends[0].hidden_requests(2.5) == 1.0
    assert there.engines[0].running == 1


def test_engines_tell_what_they_are_said_to_tell() -> None:
    for site, told in ((ONE, H100.kv_tokens), (replace(ONE, tells_cache=False), None)):
        there = world(site)
        there.run([], 1.0)
        report = there.backends[0].report
        assert report is not None
        assert report.kv_tokens == told
    there = world(replace(ONE, reports=False))
    there.run([], 1.0)
    assert there.backends[0].report is None


@pytest.mark.parametrize("think_s", [0.0, 1.0])
def test_a_client_in_a_closed_loop_has_one_call_at_a_time(think_s: float) -> None:
    loop = Loop(MIXES["decode"], Clients(retries=0), think_s, 20.0, Random(1))
    first = loop.first()
    assert first is not None
    log = world().run([first], 60.0)
    assert len(log.calls) > 3
    for last, following in zip(log.calls, log.calls[1:], strict=False):
        assert following.at_s >= last.at_s + last.e2e_s
    assert log.calls[-1].at_s < 20.0
    pauses_s = [
        following.at_s - last.at_s - last.e2e_s
        for last, following in zip(log.calls, log.calls[1:], strict=False)
    ]
    assert (sum(pauses_s) > 0.001) == bool(think_s)
