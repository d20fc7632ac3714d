"""What is found of a pool that has been in one state for a while."""

from ast import literal_eval
from dataclasses import replace
from typing import Any

import pytest

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.speed.compare import Pace
from penstock.balancing.verdict.cause import Finding, Kind
from penstock.balancing.verdict.facts import PoolFacts
from penstock.balancing.verdict.rules import GAP_S
from penstock.balancing.verdict.window import WAIT_S
from penstock.balancing.verdict.words import words
from tests.unit.balancing.verdict.pools import PREFILLS, backend, found, found_over, moment, queue

# What is found | of which backends | how fast counters grow | what waits, and other facts.
# A backend without words is usual, and so is what has none.
CASES = f"""
busy, and nothing waits | fine | kv_usage=0.99 held_share=0.99 | |
a short queue | fine | | | PROMPTS oldest_s={WAIT_S / 2}
one long prompt waits | fine | | | KV_CACHE waiting=1
prompts wait, and steps are long | compute prefill | | PREFILLS | PROMPTS
a tenant's long prompts, and a backend for others | compute prefill | ; | PREFILLS | LARGE
prompts wait in the engine | compute prefill | overdue_s=4 backlog_s=5 waiting=3 | PREFILLS |
slow tokens | compute slow_decode | | generated_tokens={10 / GAP_S / 1.1} steps=9 |
a full cache | memory | kv_usage=0.97 | PREFILLS | KV_CACHE
a full cache, known by our own count | memory | held_share=0.97 reports=False | | SHARE
prompts that are computed will need the cache, and steps are full of them | compute prefill\
    | running=2 sequences=2 | generated_tokens=20 steps=10 step_tokens=20000 | KV_CACHE
streams are stopped | memory | kv_usage=0.97 | preemptions=1 |
a full cache, and the engine's own queue | memory | kv_usage=0.99 waiting=4 overdue_s=3 | |
as many streams as it can | scheduler sequences | | | SEQUENCES
waiting in an engine with room | scheduler sequences | waiting=4 overdue_s=3 backlog_s=0.1 | |
short steps | scheduler token_budget | | | PROMPTS
steps of few prompt tokens, and none is known to be short | scheduler token_budget | step_s=0.0\
    | generated_tokens=200 steps=100 step_tokens=6400 | PROMPTS
the same engine runs eight all the time, and more wait in it | scheduler sequences\
    | running=8 waiting=7 backlog_s=0.6\
    | generated_tokens=800 steps=100 step_tokens=5000 | PROMPTS
steps of many prompt tokens, and prompts wait in engines that seem full | compute prefill\
    | running=50 waiting=20 backlog_s=0.1\
    | generated_tokens=200 steps=4 step_tokens=8000 | SEQUENCES
streams get no tokens, and their engine goes on | failing stalled | | generated_tokens=20 steps=50 |
sent, and not seen by the engine | scheduler api_server | sequences=30 | | PROMPTS
max_requests | waiting requests | | | REQUESTS
backends refuse, and requests wait | waiting busy | left_alone=True | | BUSY
one of two refuses, and nobody waits | demand busy | left_alone=True ; | |
all refuse, and nobody waits | demand busy | left_alone=True ; left_alone=True | |
one is slow | uneven slow | ; pace=9.0 | |
one is hot | uneven hot | backlog_s=3.0 wanted=9 ; | | PROMPTS
one has its first burst, and what waits finds no seat anywhere | scheduler sequences\
    | overdue_s=9.0 waiting=4 ; | | SEQUENCES
one has overdue prompts, and what waits in penstock waits for none alone | compute prefill\
    | overdue_s=3.0 ; | PREFILLS | PROMPTS
one is slower, and what waits finds no room in any cache | memory\
    | kv_usage=0.85 pace=9.0 overdue_s=3 ; kv_usage=0.8 | | KV_CACHE
all that waits in penstock waits for one, and the others rest | uneven hot\
    | backlog_s=0.08 wanted=9 ; running=2 sequences=2 | PREFILLS | PROMPTS
all that waits in penstock waits for one, and the others are busy | compute prefill\
    | backlog_s=0.08 wanted=9 ; backlog_s=0.06 running=2 | PREFILLS | PROMPTS
clients do not read | client | | | clients=10 slow_clients=4
few clients do not read | fine | | | clients=50 slow_clients=4
clients do not read, and hold the cache by our count | client | held_share=0.99 |\
    | KV_CACHE clients=10 slow_clients=9
clients do not read, and caches are full | memory | kv_usage=0.99 |\
    | KV_CACHE clients=10 slow_clients=9
clients do not read, and engines are busy | compute prefill | | PREFILLS\
    | PROMPTS clients=18 slow_clients=10
none has started | starting | STARTING | |
one of three is not there yet, and the others have a queue | starting\
    | ; ; STARTING starting_s=60.0 | | PROMPTS
one of three has never been there, and the others have a queue | failing unreachable\
    | ; ; STARTING reason=unreachable starting_s=601.0 | | PROMPTS
one of six is not there yet, and the others have a queue | compute prefill\
    | ; ; ; ; ; STARTING | PREFILLS | PROMPTS
one has not started, and the others do | fine starting | ; STARTING | |
one is new, another is doubted, and nothing waits | fine unready\
    | ; state=warming; state=suspect | |
streams are slow, and no more of them fit | compute decode\
    | running=1024 sequences=1100 streams=1024 waiting=40\
    | generated_tokens=3700 steps=4 | SEQUENCES
one is out | failing hung | ; state=ejected reason=hung | |
attempts fail | failing requests | | FAILURES failures_apart_total=0.5 |
attempts of one client fail, and there are others | client fails\
    | | FAILURES requests_apart_total=2.0 |
attempts of the only client fail | failing requests | | FAILURES |
most attempts fail, and there is one client | failing requests | | failures_total=3 |
most attempts fail for one client, and others are served | client fails\
    | | failures_total=3 requests_apart_total=2.0 |
most attempts fail for one client, and others wait for max_requests | waiting requests\
    | | failures_total=3 requests_apart_total=2.0 | REQUESTS
all fail at two backends for one client, and others are served | client fails\
    | ; | failures_total=4 requests_apart_total=2.0 |
few attempts fail | fine | | failures_total=1 failures_apart_total=1 requests_total=50 |
some attempts fail, and engines are busy | compute prefill\
    | | PREFILLS FAILURES failures_apart_total=0.5 | PROMPTS
nobody is there | failing | none | |
"""
SETS: dict[str, Any] = {
    "PREFILLS": PREFILLS,
    "FAILURES": {"failures_total": 1.0},  # of five requests a second
    "STARTING": {"state": "starting", "can_serve": False},
}


def facts_of(words: str) -> dict[str, Any]:
    """Of some words, each `name=value`, or the name of a set."""
    facts: dict[str, Any] = {}
    for word in words.split():
        name, _, value = word.partition("=")
        if value:
            facts[name] = literal_eval(value) if value[0] in "0123456789TF" else value
        else:
            facts |= SETS[name]
    return facts


def found_of(backends: str, per_s: str, rest: str) -> Finding:
    made = [facts_of(words) for words in backends.split(";")] if backends != "none" else []
    for facts in made:
        if "pace" in facts:
            facts["pace"] = Pace(decode=facts["pace"])
    lack, _, more = rest.partition(" ")
    waits = lack in WaitReason.__members__
    facts = facts_of(more if waits else rest)
    if waits:
        queued = {name: facts.pop(name) for name in ("waiting", "oldest_s") if name in facts}
        facts |= queue(WaitReason[lack], **queued)
    named = [backend(name, **of) for name, of in zip("abcdef", made, strict=False)]
    return found(*named, per_s=facts_of(per_s), **facts)


@pytest.mark.parametrize("row", CASES.strip().splitlines(), ids=lambda row: row.partition(" |")[0])
def test_what_is_found(row: str) -> None:
    _, cause, *seen = (part.strip() for part in row.split("|"))
    kind, _, detail = cause.partition(" ")
    finding = found_of(*seen)
    assert (finding.kind, finding.detail) == (kind, detail), finding
    sentence, to_do = words(finding)
    assert sentence.endswith(".")
    assert bool(to_do) is (finding.kind is not Kind.FINE)
    assert len(sentence.split()) <= 40


def test_an_engine_that_pauses_streams_has_no_room_though_it_is_less_full_on_average() -> None:
    few = backend(kv_usage=0.6, overdue_s=3.0, running=4, waiting=3, sequences=7, streams=4)
    assert found(few).detail == "sequences"
    finding = found(few, per_s={"preemptions": 0.1})
    assert (finding.kind, finding.figures["full"]) == (Kind.MEMORY, 0.0)
    sentence, _ = words(finding)
    assert "(up to 60% is used now)" in sentence
    assert sentence.endswith("Engines paused a stream for lack of room.")


def test_where_most_caches_are_full_no_backend_is_called_slow_or_hot() -> None:
    full = [backend("a", kv_usage=0.97), backend("b", kv_usage=0.95, pace=Pace(1.0, 7.0))]
    assert found(*full, **queue(WaitReason.KV_CACHE)).kind is Kind.MEMORY
    roomy = [backend("a", kv_usage=0.5), backend("b", kv_usage=0.95, pace=Pace(1.0, 7.0))]
    assert found(*roomy).kind is Kind.UNEVEN


@pytest.mark.parametrize(
    ("pace", "figures"),
    [(Pace(9.0, 4.0), {"decode": 4.0}), (Pace(9.0, 2.0), {"prefill": 9.0})],
)
def test_a_backend_that_is_slow_in_both_is_told_by_its_tokens(
    pace: Pace, figures: dict[str, float]
) -> None:
    finding = found(backend("a"), backend("b", pace=pace), backend("c"))
    assert (finding.kind, finding.backend, finding.figures) == (Kind.UNEVEN, "b", figures)


def test_what_is_left_to_other_tenants_is_places_where_caches_are_empty() -> None:
    few = backend(kv_usage=0.05, running=8, sequences=8, streams=8)
    assert found(few, **queue(WaitReason.SHARE)).detail == "sequences"
    assert found(backend(kv_usage=0.8), **queue(WaitReason.SHARE)).kind is Kind.MEMORY


def test_a_cache_has_no_room_where_one_more_stream_would_fill_it() -> None:
    """A third stream like these two would need 0.68 of it, and later more."""
    two = backend(kv_usage=0.45, running=2, sequences=2, streams=2)
    assert found(two, **queue(WaitReason.SHARE)).kind is Kind.MEMORY
    behind = backend(kv_usage=0.6, running=2, waiting=3, sequences=5, streams=2)
    assert found(behind, **queue(WaitReason.KV_CACHE)).kind is Kind.MEMORY
    assert found(behind, **queue(WaitReason.SHARE)).kind is Kind.MEMORY


def test_who_waits_for_others_waits_for_what_those_lack() -> None:
    """One of a high class lacks room in a cache, and five behind it wait for that one."""
    facts = queue(WaitReason.KV_CACHE) | {"lacks": {WaitReason.KV_CACHE: 1, WaitReason.CLASS: 5}}
    assert found(backend(kv_usage=0.97), per_s=PREFILLS, **facts).kind is Kind.MEMORY


def test_turns_alone_are_no_work_of_engines() -> None:
    rests = backend(running=0, streams=0, sequences=0)
    per_s = {"generated_tokens": 0.0, "steps": 0.0}
    finding = found(rests, per_s=per_s, **queue(WaitReason.TURN))
    assert (finding.kind, finding.detail) == (Kind.WAITING, "turn")
    assert words(finding)[0].startswith("Waiting in penstock: others go first")


def test_a_cache_that_is_full_by_our_count_alone_is_not_called_full() -> None:
    sentence, _ = words(found(backend(kv_usage=0.41), per_s=PREFILLS, **queue(WaitReason.KV_CACHE)))
    assert sentence.startswith("Memory-bound: answers under way will need the rest")
    assert "41% is used now" in sentence


def test_what_is_suspect_is_told_without_a_word_on_requests_that_hang_there() -> None:
    suspect = found(backend("a"), backend("b", state="suspect"))
    assert words(suspect)[0] == "Nothing is queued, but b is suspect."


def test_attempts_that_failed_are_told_at_who_is_out() -> None:
    out = backend("b", state="ejected", reason="failing", can_serve=False)
    sentence, _ = words(found(backend("a"), out, per_s={"failures_total": 0.2}))
    assert "Lately 2 attempts failed there." in sentence


def test_a_backend_that_refuses_now_and_then_is_fine() -> None:
    moments = (moment(float(at), backend(left_alone=at % 3 == 0)) for at in range(11))
    assert found_over(moments).kind is Kind.FINE


def test_refusals_of_backends_are_not_called_a_limit_of_penstock() -> None:
    waits = found(backend(left_alone=True), **queue(WaitReason.BUSY))
    rests = found(backend("a"), backend("b", left_alone=True))
    assert rests.backend == "b"
    for finding in (waits, rests):
        sentence, to_do = words(finding)
        assert "429 or 503" in sentence
        assert "max_requests" not in sentence + "".join(to_do)


def test_refusals_that_nothing_explains_are_demand() -> None:
    moments = (moment(float(at), backend(), refused_total=2 * at) for at in range(11))
    assert found_over(moments).kind is Kind.DEMAND


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
    moments = []
    for second in range(11):
        count = 300 if second < 10 else 4
        each = backend(streams=count, running=count, sequences=count, kv_usage=0.1)
        moments.append(moment(float(second), each, per_s={"generated_tokens": 1_200, "steps": 4}))
    assert found_over(moments).detail == "decode"


def test_how_long_a_start_takes_so_far_is_told() -> None:
    finding = found(backend(state="starting", can_serve=False, starting_s=44.0))
    assert "starting for 44 s" in words(finding)[0]


# Failed attempts ---------------------------------------------------------------------------


def test_what_all_backends_fail_at_blames_none_of_them() -> None:
    """Penstock may eject one backend only, and has. The other one fails, too."""
    out = backend("b", state="ejected", reason="unreachable", can_serve=False)
    for backends in ((backend("a"), out), (backend("a"), backend("b"))):
        finding = found(*backends, per_s={"failures_total": 4})
        assert (finding.detail, finding.backend) == ("everywhere", "")
        assert "at each of the 2 backends" in words(finding)[0]


@pytest.mark.parametrize(
    ("failed", "kind"), [("aaaa", Kind.CLIENT), ("abcd", Kind.FAILING), ("aab ", Kind.FAILING)]
)
def test_the_last_failures_at_several_backends_tell_how_many_clients_fail(
    failed: str, kind: Kind
) -> None:
    """Each of these backends has failed one client."""
    backends = [backend(str(n), failed_most=who.strip()) for n, who in enumerate(failed)]
    per_s = {"failures_total": 4, "requests_apart_total": 2.0}
    assert found(*backends, per_s=per_s).kind is kind


def test_where_only_one_of_two_fails_it_is_named() -> None:
    moments = []
    for at in range(11):
        both = [
            replace(backend(name), requests_total=5 * at, failures_total=failed)
            for name, failed in (("a", 0), ("b", 5 * at))
        ]
        moments.append(PoolFacts(float(at), tuple(both)))
    finding = found_over(moments)
    assert (finding.detail, finding.backend) == ("requests", "b")


def test_where_nobody_is_served_no_client_is_to_blame() -> None:
    """A busy client and a rare one."""
    per_s = {"failures_total": 5, "failures_apart_total": 0.2, "requests_apart_total": 0.5}
    assert found(backend(), per_s=per_s).kind is Kind.FAILING


def test_one_that_fails_most_of_the_few_that_it_gets_is_failing() -> None:
    """penstock avoids it, so that of all requests only a fiftieth fails."""
    totals = ("requests", "failures", "failures_apart", "requests_apart")
    moments = []
    for second in range(60):
        good = replace(backend("a"), requests_total=9 * second)
        counts: dict[str, Any] = {f"{name}_total": second // 5 for name in totals}
        moments.append(PoolFacts(float(second), (good, replace(backend("b"), **counts))))
    assert found_over(moments[:21]).kind is Kind.FINE
    finding = found_over(moments)
    assert (finding.kind, finding.detail, finding.backend) == (Kind.FAILING, "backend", "b")


def test_rare_failures_of_others_beside_a_flood_of_one_client_are_not_common() -> None:
    per_s = {"failures_total": 4, "failures_apart_total": 0.12, "requests_apart_total": 3.0}
    backends = [backend("a"), backend("b")]
    assert found(*backends, per_s=per_s | {"requests_total": 8}).kind is Kind.CLIENT


def test_a_part_of_one_clients_requests_that_fails_is_told() -> None:
    per_s = {"failures_total": 1, "requests_total": 10, "requests_apart_total": 2.0}
    finding = found(backend(), per_s=per_s)
    assert (finding.kind, finding.detail) == (Kind.CLIENT, "fails")
