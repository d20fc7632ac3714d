"""Scenarios that the rules were made with."""

from dataclasses import replace
from typing import Final

from penstock.bench.verdict.scenario import ONSET_S, Fault, Scenario, Server, Traffic

CALM: Final = Traffic(rate_per_s=3.0)
TWO: Final = (Server(), Server())


def later(traffic: Traffic) -> Traffic:
    """The same, but it begins with the cause."""
    return replace(traffic, from_s=ONSET_S)


SCENARIOS: Final = (
    Scenario("fine at 30 %", ("fine",), TWO, (Traffic(6.0, (1_000, 3_000), (20, 60)),)),
    Scenario("fine at 80 %", ("fine",), TWO, (Traffic(18.0, (1_000, 5_000), (20, 60)),)),
    Scenario(
        "long prompts",
        ("compute", "demand"),
        TWO,
        (CALM, later(Traffic(20.0, prompt_tokens=(4_000, 8_000)))),
    ),
    Scenario(
        "many prompts",
        ("compute", "demand"),
        TWO,
        (CALM, later(Traffic(50.0, prompt_tokens=(1_500, 3_000)))),
    ),
    Scenario(
        "long answers in small caches",
        ("memory",),
        (Server(kv_tokens=20_000), Server(kv_tokens=20_000)),
        (CALM, later(Traffic(6.0, answer_tokens=(1_500, 2_500)))),
    ),
    Scenario(
        "long prompts in small caches",
        ("memory",),
        (Server(kv_tokens=16_000), Server(kv_tokens=16_000)),
        (CALM, later(Traffic(6.0, prompt_tokens=(4_000, 6_000), answer_tokens=(300, 500)))),
    ),
    Scenario(
        "few sequences",
        ("scheduler",),
        (Server(max_num_seqs=4), Server(max_num_seqs=4)),
        (Traffic(1.0), later(Traffic(8.0, answer_tokens=(200, 400)))),
    ),
    Scenario(
        "small token budget",
        ("scheduler",),
        (
            Server(max_num_seqs=24, max_num_batched_tokens=32),
            Server(max_num_seqs=24, max_num_batched_tokens=32),
        ),
        (CALM, later(Traffic(10.0, prompt_tokens=(1_000, 2_000)))),
    ),
    Scenario(
        "slow API servers",
        ("scheduler",),
        (Server(api_ms=250.0), Server(api_ms=250.0)),
        (Traffic(2.0), later(Traffic(12.0))),
    ),
    Scenario(
        "one slow GPU",
        ("uneven",),
        (Server(), Server(), Server(speedup=0.1)),
        (Traffic(6.0),),
    ),
    Scenario(
        "one busy session",
        ("uneven",),
        (Server(), Server(), Server()),
        (
            Traffic(3.0),
            later(Traffic(14.0, prompt_tokens=(4_000, 5_000), session="agent", tenant="agents")),
        ),
        config={"affinity": {"strict": True}},
    ),
    Scenario("fine at 90 %", ("fine",), TWO, (Traffic(27.0, (1_000, 5_000), (20, 60)),)),
    Scenario(
        "slow clients",
        ("client",),
        TWO,
        (
            Traffic(1.0),
            later(Traffic(4.0, answer_tokens=(800, 1_200), read_bytes_per_s=400.0)),
        ),
    ),
    Scenario(
        "a flooding tenant",
        ("compute", "demand"),
        TWO,
        (CALM, later(Traffic(50.0, prompt_tokens=(2_000, 4_000), tenant="flood"))),
        tenant="flood",
    ),
    Scenario(
        "max_requests",
        ("waiting",),
        TWO,
        (CALM, later(Traffic(10.0, answer_tokens=(200, 300)))),
        pool={"max_requests": 3},
    ),
    Scenario(
        "not started yet", ("starting",), (Server(starts_s=None), Server(starts_s=None)), (CALM,)
    ),
    Scenario("one dies", ("failing",), (Server(), Server(stops_s=ONSET_S)), (CALM,)),
    Scenario(
        "one answers 500",
        ("failing",),
        TWO,
        (Traffic(6.0),),
        faults=(Fault(ONSET_S, 1, {"kind": "internal_error"}),),
    ),
    Scenario(
        "many streams",
        ("compute",),
        (Server(profile="70b-4xa100"), Server(profile="70b-4xa100")),
        (
            Traffic(1.0),
            later(Traffic(12.0, prompt_tokens=(1_000, 2_000), answer_tokens=(100, 300))),
        ),
    ),
)
