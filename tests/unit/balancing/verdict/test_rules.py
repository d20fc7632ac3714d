"""What is found of a pool that has been in one state for a while."""

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.speed.compare import Pace
from penstock.balancing.verdict.cause import Finding, Kind
from penstock.balancing.verdict.facts import BackendFacts
from penstock.balancing.verdict.rules import GAP_S, find
from penstock.balancing.verdict.window import WAIT_S, Window
from penstock.balancing.verdict.words import words
from tests.unit.balancing.verdict.pools import PREFILLS, backend, found, moment, queue

IDLE = {"generated_tokens": 0.0, "steps": 0.0}
FAILURES = {"failures_total": 1.0}  # of five requests a second


def case(
    kind: Kind,
    detail: str,
    *backends: BackendFacts,
    per_s: Mapping[str, float] | None = None,
    **facts: Any,
) -> tuple[Kind, str, Finding]:
    return kind, detail, found(*backends, per_s=per_s, **facts)


CASES = {
    "busy, and nothing waits": case(Kind.FINE, "", backend(kv_usage=0.99, held_share=0.99)),
    "a short queue": case(
        Kind.FINE, "", backend(), **queue(WaitReason.PROMPTS, oldest_s=WAIT_S / 2)
    ),
    "one long prompt waits": case(
        Kind.FINE, "", backend(), **queue(WaitReason.KV_CACHE, waiting=1)
    ),
    "prompts wait, and steps are long": case(
        Kind.COMPUTE, "prefill", backend(), per_s=PREFILLS, **queue(WaitReason.PROMPTS)
    ),
    "a tenant's long prompts, and a backend for others": case(
        Kind.COMPUTE, "prefill", backend(), backend(), per_s=PREFILLS, **queue(WaitReason.LARGE)
    ),
    "prompts wait in the engine": case(
        Kind.COMPUTE, "prefill", backend(overdue_s=4.0, backlog_s=5.0, waiting=3), per_s=PREFILLS
    ),
    "slow tokens": case(
        Kind.COMPUTE,
        "slow_decode",
        backend(),
        per_s={"generated_tokens": 10 / GAP_S / 1.1, "steps": 9},
    ),
    "a full cache": case(
        Kind.MEMORY, "", backend(kv_usage=0.97), per_s=PREFILLS, **queue(WaitReason.KV_CACHE)
    ),
    "a full cache, known by our own count": case(
        Kind.MEMORY, "", backend(held_share=0.97, reports=False), **queue(WaitReason.SHARE)
    ),
    "streams are stopped": case(Kind.MEMORY, "", backend(kv_usage=0.97), per_s={"preemptions": 1}),
    "a full cache, and the engine's own queue": case(
        Kind.MEMORY, "", backend(kv_usage=0.99, waiting=4, overdue_s=3.0)
    ),
    "as many streams as it can": case(
        Kind.SCHEDULER, "sequences", backend(), **queue(WaitReason.SEQUENCES)
    ),
    "waiting in an engine with room": case(
        Kind.SCHEDULER, "sequences", backend(waiting=4, overdue_s=3.0, backlog_s=0.1)
    ),
    "short steps": case(Kind.SCHEDULER, "token_budget", backend(), **queue(WaitReason.PROMPTS)),
    "steps of few prompt tokens, and none is known to be short": case(
        Kind.SCHEDULER,
        "token_budget",
        backend(step_s=0.0),
        per_s={"generated_tokens": 200, "steps": 100, "step_tokens": 6_400},
        **queue(WaitReason.PROMPTS),
    ),
    "the same engine runs eight all the time, and more wait in it": case(
        Kind.SCHEDULER,
        "sequences",
        backend(running=8, waiting=7, backlog_s=0.6),
        per_s={"generated_tokens": 800, "steps": 100, "step_tokens": 5_000},
        **queue(WaitReason.PROMPTS),
    ),
    "steps of many prompt tokens, and prompts wait in engines that seem full": case(
        Kind.COMPUTE,
        "prefill",
        backend(running=50, waiting=20, backlog_s=0.1),
        per_s={"generated_tokens": 200, "steps": 4, "step_tokens": 8_000},
        **queue(WaitReason.SEQUENCES),
    ),
    "streams get no tokens, and their engine goes on": case(
        Kind.FAILING, "stalled", backend(), per_s={"generated_tokens": 20, "steps": 50}
    ),
    "sent, and not seen by the engine": case(
        Kind.SCHEDULER, "api_server", backend(sequences=30), **queue(WaitReason.PROMPTS)
    ),
    "max_requests": case(Kind.WAITING, "requests", backend(), **queue(WaitReason.REQUESTS)),
    "backends refuse, and requests wait": case(
        Kind.WAITING, "busy", backend(left_alone=True), **queue(WaitReason.BUSY)
    ),
    "one of two refuses, and nobody waits": case(
        Kind.DEMAND, "busy", backend("a", left_alone=True), backend("b")
    ),
    "all refuse, and nobody waits": case(
        Kind.DEMAND, "busy", backend("a", left_alone=True), backend("b", left_alone=True)
    ),
    "one is slow": case(Kind.UNEVEN, "slow", backend("a"), backend("b", pace=Pace(decode=9.0))),
    "one is hot": case(
        Kind.UNEVEN,
        "hot",
        backend("a", backlog_s=3.0, wanted=9),
        backend("b"),
        **queue(WaitReason.PROMPTS),
    ),
    "all that waits in penstock waits for one, and the others rest": case(
        Kind.UNEVEN,
        "hot",
        backend("a", backlog_s=0.08, wanted=9),
        backend("b", running=2, sequences=2),
        per_s=PREFILLS,
        **queue(WaitReason.PROMPTS),
    ),
    "all that waits in penstock waits for one, and the others are busy": case(
        Kind.COMPUTE,
        "prefill",
        backend("a", backlog_s=0.08, wanted=9),
        backend("b", backlog_s=0.06, running=2),
        per_s=PREFILLS,
        **queue(WaitReason.PROMPTS),
    ),
    "clients do not read": case(Kind.CLIENT, "", backend(), clients=10, slow_clients=4),
    "few clients do not read": case(Kind.FINE, "", backend(), clients=50, slow_clients=4),
    "clients do not read, and hold the cache by our count": case(
        Kind.CLIENT,
        "",
        backend(held_share=0.99),
        clients=10,
        slow_clients=9,
        **queue(WaitReason.KV_CACHE),
    ),
    "clients do not read, and caches are full": case(
        Kind.MEMORY,
        "",
        backend(kv_usage=0.99),
        clients=10,
        slow_clients=9,
        **queue(WaitReason.KV_CACHE),
    ),
    "clients do not read, and engines are busy": case(
        Kind.COMPUTE,
        "prefill",
        backend(),
        per_s=PREFILLS,
        clients=18,
        slow_clients=10,
        **queue(WaitReason.PROMPTS),
    ),
    "none has started": case(Kind.STARTING, "", backend(state="starting", can_serve=False)),
    "one of three is not there yet, and the others have a queue": case(
        Kind.STARTING,
        "",
        backend("a"),
        backend("b"),
        backend("c", state="starting", can_serve=False, starting_s=60.0),
        **queue(WaitReason.PROMPTS),
    ),
    "one of three has never been there, and the others have a queue": case(
        Kind.FAILING,
        "unreachable",
        backend("a"),
        backend("b"),
        backend("c", state="starting", reason="unreachable", can_serve=False, starting_s=601.0),
        **queue(WaitReason.PROMPTS),
    ),
    "one of six is not there yet, and the others have a queue": case(
        Kind.COMPUTE,
        "prefill",
        *(backend(name) for name in "abcde"),
        backend("f", state="starting", can_serve=False),
        per_s=PREFILLS,
        **queue(WaitReason.PROMPTS),
    ),
    "one has not started, and the others do": case(
        Kind.FINE, "", backend("a"), backend("b", state="starting", can_serve=False)
    ),
    "streams are slow, and no more of them fit": case(
        Kind.COMPUTE,
        "decode",
        backend(running=1_024, sequences=1_100, streams=1_024, waiting=40),
        per_s={"generated_tokens": 3_700, "steps": 4},
        **queue(WaitReason.SEQUENCES),
    ),
    "one is out": case(
        Kind.FAILING, "hung", backend("a"), backend("b", state="ejected", reason="hung")
    ),
    "attempts fail": case(
        Kind.FAILING, "requests", backend(), per_s=FAILURES | {"failures_apart_total": 0.5}
    ),
    "attempts of one client fail, and there are others": case(
        Kind.CLIENT, "fails", backend(), per_s=FAILURES | {"requests_apart_total": 2.0}
    ),
    "attempts of the only client fail": case(Kind.FAILING, "requests", backend(), per_s=FAILURES),
    "most attempts fail, and there is one client": case(
        Kind.FAILING, "requests", backend(), per_s={"failures_total": 3}
    ),
    "most attempts fail for one client, and others are served": case(
        Kind.CLIENT,
        "fails",
        backend(),
        per_s={"failures_total": 3, "requests_apart_total": 2.0},
    ),
    "most attempts fail for one client, and others wait for max_requests": case(
        Kind.WAITING,
        "requests",
        backend(),
        per_s={"failures_total": 3, "requests_apart_total": 2.0},
        **queue(WaitReason.REQUESTS),
    ),
    "all fail at two backends for one client, and others are served": case(
        Kind.CLIENT,
        "fails",
        backend("a"),
        backend("b"),
        per_s={"failures_total": 4, "requests_apart_total": 2.0},
    ),
    "few attempts fail": case(
        Kind.FINE,
        "",
        backend(),
        per_s={"failures_total": 1, "failures_apart_total": 1, "requests_total": 50},
    ),
    "some attempts fail, and engines are busy": case(
        Kind.COMPUTE,
        "prefill",
        backend(),
        per_s=PREFILLS | FAILURES | {"failures_apart_total": 0.5},
        **queue(WaitReason.PROMPTS),
    ),
    "nobody is there": case(Kind.FAILING, ""),
}


def test_where_most_caches_are_full_no_backend_is_called_slow_or_hot() -> None:
    full = [backend("a", kv_usage=0.97), backend("b", kv_usage=0.95, pace=Pace(1.0, 7.0))]
    assert found(*full, **queue(WaitReason.KV_CACHE)).kind is Kind.MEMORY
    roomy = [backend("a", kv_usage=0.5), backend("b", kv_usage=0.95, pace=Pace(1.0, 7.0))]
    assert found(*roomy).kind is Kind.UNEVEN


def test_what_is_left_to_other_tenants_is_places_where_caches_are_empty() -> None:
    few = backend(kv_usage=0.05, running=8, sequences=8, streams=8)
    assert found(few, **queue(WaitReason.SHARE)).detail == "sequences"
    assert found(backend(kv_usage=0.8), **queue(WaitReason.SHARE)).kind is Kind.MEMORY


def test_who_waits_for_others_waits_for_what_those_lack() -> None:
    """One of a high class lacks room in a cache, and five behind it wait for that one."""
    facts = queue(WaitReason.KV_CACHE) | {"lacks": {WaitReason.KV_CACHE: 1, WaitReason.CLASS: 5}}
    assert found(backend(kv_usage=0.97), per_s=PREFILLS, **facts).kind is Kind.MEMORY


def test_turns_alone_are_no_work_of_engines() -> None:
    finding = found(
        backend(running=0, streams=0, sequences=0), per_s=IDLE, **queue(WaitReason.TURN)
    )
    assert (finding.kind, finding.detail) == (Kind.WAITING, "turn")
    assert words(finding)[0].startswith("Waiting in penstock: others go first")


def test_a_cache_that_is_full_by_our_count_alone_is_not_called_full() -> None:
    sentence, _ = words(found(backend(kv_usage=0.41), per_s=PREFILLS, **queue(WaitReason.KV_CACHE)))
    assert sentence.startswith("Memory-bound: answers under way will need the rest")
    assert "41% is used now" in sentence


@pytest.mark.parametrize("name", CASES)
def test_what_is_found(name: str) -> None:
    kind, detail, finding = CASES[name]
    assert (finding.kind, finding.detail) == (kind, detail), finding
    sentence, to_do = words(finding)
    assert sentence.endswith(".")
    assert bool(to_do) is (kind is not Kind.FINE)
    assert len(sentence.split()) <= 40


def test_a_backend_that_refuses_now_and_then_is_fine() -> None:
    window = Window()
    for second in range(11):
        window.add(moment(float(second), backend(left_alone=second % 3 == 0)))
    assert find(window, list(window.backends())).kind is Kind.FINE


def test_refusals_of_backends_are_not_called_a_limit_of_penstock() -> None:
    waits = found(backend(left_alone=True), **queue(WaitReason.BUSY))
    rests = found(backend("a"), backend("b", left_alone=True))
    assert rests.backend == "b"
    for finding in (waits, rests):
        sentence, to_do = words(finding)
        assert "429 or 503" in sentence
        assert "max_requests" not in sentence + "".join(to_do)


def test_refusals_that_nothing_explains_are_demand() -> None:
    window = Window()
    for second in range(11):
        window.add(moment(float(second), backend(), refused_total=2 * second))
    assert find(window, list(window.backends())).kind is Kind.DEMAND


def test_peers_that_tell_no_figures_do_not_rest() -> None:
    """Both have as many requests, and all that waits would go to one of them."""
    silent: dict[str, Any] = {"reports": False, "held_share": 0.0}
    backends = [backend("a", wanted=9, **silent), backend("b", **silent)]
    assert found(*backends, **queue(WaitReason.REQUESTS)).kind is Kind.WAITING


@pytest.mark.parametrize(
    ("streams", "kv_usage", "slow"), [(8, 0.1, True), (300, 0.1, False), (8, 0.8, False)]
)
def test_slow_tokens_of_few_streams_are_no_crowd(streams: int, kv_usage: float, slow: bool) -> None:
    each = backend(streams=streams, running=streams, kv_usage=kv_usage)
    finding = found(each, per_s={"generated_tokens": streams * 5, "steps": 5})
    assert (finding.kind, finding.detail) == (Kind.COMPUTE, "slow_decode" if slow else "decode")
    assert words(finding)[1][0].startswith("Look at the GPUs") is slow


def test_slow_tokens_beside_prompts_are_no_fault_of_engines() -> None:
    per_s = {"generated_tokens": 40, "steps": 5, "step_tokens": 10_000}
    assert found(backend(streams=8, running=8, backlog_s=3.0), per_s=per_s).detail == "decode"


def test_a_crowd_that_has_just_left_was_one() -> None:
    window = Window()
    for second in range(11):
        count = 300 if second < 10 else 4
        each = backend(streams=count, running=count, sequences=count, kv_usage=0.1)
        window.add(moment(float(second), each, per_s={"generated_tokens": 1_200, "steps": 4}))
    assert find(window, list(window.backends())).detail == "decode"


def test_how_long_a_start_takes_so_far_is_told() -> None:
    finding = found(backend(state="starting", can_serve=False, starting_s=44.0))
    assert "starting for 44 s" in words(finding)[0]
