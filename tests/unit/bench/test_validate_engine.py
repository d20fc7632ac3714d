"""How a real and a simulated server are compared: the requests, and what is made of both runs."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from penstock.bench.sim.profiles import Profile
from penstock.bench.sim.prompt import Prompt
from penstock.bench.validate_engine import (
    Request,
    Run,
    Server,
    burst,
    compare,
    fitted,
    poisson,
    prefixes,
    text_of,
)


def test_both_servers_get_as_many_tokens_and_share_the_same() -> None:
    one, two = Request(1, 0.0, 600, 4, 7, 512), Request(2, 0.0, 700, 4, 7, 512)
    for request in (one, two):
        assert len(request.words()) == request.prompt_tokens
        assert Prompt.from_text(text_of(request)).tokens == request.prompt_tokens
    assert one.words()[:512] == two.words()[:512]
    assert one.words()[512:600] != two.words()[512:600]
    assert text_of(one)[: 512 * 4] == text_of(two)[: 512 * 4]
    assert Request(1, 0.0, 600, 4).words()[:20] != Request(2, 0.0, 600, 4).words()[:20]


def test_the_loads_are_the_seeds() -> None:
    for make in (burst, prefixes, lambda rng: poisson(rng, 5.0, 20.0)):
        assert make(Random(1)) == make(Random(1)) != make(Random(2))
    # More than one cache of 32,000 tokens holds, of either.
    assert sum(each.prompt_tokens + each.output_tokens for each in burst(Random(1))) > 50_000
    assert len({each.group for each in prefixes(Random(1))}) * 512 > 32_000


def run(ended: list[int], preemptions: float) -> Run:
    sample = {
        "running": 4.0,
        "waiting": 2.0,
        "tokens": 40.0,
        "prompt_tokens": 100.0,
        "preemptions": preemptions,
        "queries": 100.0,
        "hits": 32.0,
    }
    times = dict.fromkeys(ended, 0.25)
    return Run(ended, times, times, [sample, sample])


def test_a_row_has_both_figures_and_their_ratio() -> None:
    rows = compare("burst", run([1, 2, 3], 10.0), run([1, 3, 2], 9.0))
    shown = {row.what: str(row) for row in rows}
    assert shown["burst: preemptions"] == "| burst: preemptions | 10 | 9 | 0.90 |"
    assert shown["burst: running, mean"] == "| burst: running, mean | 4.0 | 4.0 | 1.00 |"
    order = next(row for row in rows if "rank correlation" in row.what)
    assert order.simulated == pytest.approx(0.5)


def test_nothing_of_time_is_compared_where_nothing_is_left_to_it() -> None:
    rows = compare("prefixes", run([1, 2], 0.0), run([1, 2], 0.0))
    assert [row.what.partition(": ")[2] for row in rows][-1] == "tokens found"
    assert str(rows[2]) == "| prefixes: preemptions | 0 | 0 | - |"


class Law(Server):
    """A server of known speed: 4 ms a step and 0.1 ms a stream, 1,000 tokens/s, 5 ms before it.

    The first answer to each kind of request comes late and in one piece.
    """

    def __init__(self) -> None:
        pass

    async def run(self, requests: Sequence[Request], *, one_by_one: bool = False) -> Run:
        run = Run()
        streams = 1 if one_by_one else len(requests)
        for at, request in enumerate(requests):
            step_s = 0.004 + (streams - 1) * 0.000_1
            first_s = 0.005 + step_s + request.prompt_tokens / 1_000
            whole_s = first_s + (request.output_tokens - 1) * step_s
            late = at == 0 and len(requests) > 1
            run.e2e_s[request.number] = whole_s + late
            run.ttft_s[request.number] = whole_s + late if late else first_s
        return run


def test_speed_is_found_though_an_answer_comes_in_one_piece() -> None:
    profile = asyncio.run(fitted(Law(), Profile("like it")))
    assert profile.step_base_s == pytest.approx(0.004)
    assert profile.step_s_per_stream == pytest.approx(0.000_1)
    assert profile.prefill_tokens_per_s == pytest.approx(1_000)
    assert profile.api_s == pytest.approx(0.005 + 16 / 1_000)
