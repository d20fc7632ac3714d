"""A verdict second by second, as a transcript."""

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.speed.compare import Pace
from penstock.balancing.verdict.cause import Kind, Missed
from penstock.balancing.verdict.facts import PoolFacts
from penstock.balancing.verdict.verdict import FINE_LOOKS, Verdict
from penstock.balancing.verdict.words import words
from tests.unit.balancing.verdict.pools import backend, found, moment, queue

FINE = backend()
FULL = backend(kv_usage=0.97)


def look(verdict: Verdict, facts: PoolFacts) -> bool:
    verdict.window.add(facts)
    return verdict.look(list(verdict.window.backends()))


def played(*seconds: PoolFacts) -> list[str]:
    """At each change, when it was told, since when it was so, and what."""
    verdict = Verdict(0.0)
    return [
        f"{facts.at_s:g}: {verdict.finding.kind} since {verdict.since_s:g}"
        for facts in seconds
        if look(verdict, facts)
    ]


def run(*parts: tuple[int, bool]) -> list[str]:
    """So many seconds with a full cache before which requests wait, or without."""
    seconds: list[PoolFacts] = []
    for length, full in parts:
        for _ in range(length):
            at_s = float(len(seconds))
            seconds.append(
                moment(at_s, FULL, **queue(WaitReason.KV_CACHE)) if full else moment(at_s, FINE)
            )
    return played(*seconds)


def test_a_cause_that_lasts_is_told_and_ends() -> None:
    assert run((20, False), (30, True), (30, False)) == [
        "24: memory since 21",
        "62: fine since 53",
    ]


def test_a_cause_of_a_moment_is_not_told() -> None:
    assert run((20, False), (1, True), (20, False), (1, True), (20, False)) == []


def test_a_cause_that_comes_and_goes_is_one() -> None:
    pauses = [(5, True), (FINE_LOOKS - 4, False)]
    lines = run((20, False), (20, True), *(pauses * 5), (30, False))
    assert [line.split()[1] for line in lines] == ["memory", "fine"]


def test_two_causes_in_turn_put_nothing_off() -> None:
    """Beside a level that is missed at once, a sentence would long say that nothing is wrong."""
    slow = backend("b", pace=Pace(4.0, 1.0))
    seconds = [moment(float(at), FINE, backend("b")) for at in range(20)]
    for at in range(20, 26):
        waits = queue(WaitReason.KV_CACHE) if at % 2 else {}
        seconds.append(moment(float(at), FULL if waits else FINE, slow, **waits))
    ((told, *_),) = [each.split(":") for each in played(*seconds)[:1]]
    assert float(told) <= 25.0  # never, if each cause had to last


def test_what_is_certain_is_told_after_two_looks() -> None:
    out = backend("b", state="ejected", reason="unreachable", can_serve=False)
    seconds = [moment(float(at), FINE) for at in range(10)]
    seconds += [moment(float(at), FINE, out) for at in range(10, 20)]
    assert played(*seconds) == ["11: failing since 10"]


def test_what_follows_from_a_state_ends_with_it() -> None:
    out = backend("b", state="ejected", reason="hung", can_serve=False)
    seconds = [moment(float(at), FINE, *[out] * (at < 20)) for at in range(30)]
    assert played(*seconds) == ["0: failing since 0", "21: fine since 20"]


def test_a_cause_that_is_seen_no_more_is_told_as_past() -> None:
    """Nobody reads "4 requests wait" when none does."""
    verdict = Verdict(0.0)
    said = []
    for at in range(20):
        waits = queue(WaitReason.KV_CACHE) if at < 15 else {}
        look(verdict, moment(float(at), FULL if waits else FINE, **waits))
        sentence, _ = words(verdict.finding, at - verdict.seen_s)
        said.append(sentence.partition(":")[0])
    assert said[14] == "Memory-bound"
    assert said[-1].startswith("Seen ")


def test_a_missed_service_level_is_told_with_and_without_a_cause() -> None:
    missed = (Missed("ttft_p95", "95% of first tokens took up to 3 s"),)
    verdict = Verdict(0.0)
    for at in range(20):
        look(verdict, moment(float(at), FINE, missed=missed))
    assert words(verdict.finding)[0] == (
        "A service level is missed, though nothing waits now and no backend stands out."
        " ttft_p95: 95% of first tokens took up to 3 s."
    )
    for at in range(20, 40):
        look(verdict, moment(float(at), FULL, missed=missed, **queue(WaitReason.KV_CACHE)))
    sentence, _ = words(verdict.finding)
    assert sentence.startswith("Memory-bound")
    assert sentence.endswith("Missed service levels: ttft_p95.")


def test_a_level_that_is_missed_is_told_at_once_and_its_cause_when_that_is_sure() -> None:
    missed = (Missed("ttft_p95", "slow"),)
    seconds = [moment(float(at), FINE) for at in range(20)]
    seconds += [
        moment(float(at), FULL, missed=missed, **queue(WaitReason.KV_CACHE)) for at in range(20, 40)
    ]
    told = played(*seconds)
    assert told[0] == "20: missed since 20"
    assert told[1].split()[1] == "memory"


def test_a_missed_level_whose_cause_is_seen_already_waits_for_it_to_be_sure() -> None:
    """No look before said that a level is missed: since this one it is."""
    missed = (Missed("ttft_p95", "slow"),)
    full = [moment(float(at), FULL, missed=missed, **queue(WaitReason.KV_CACHE)) for at in range(9)]
    verdict = Verdict(0.0)
    assert look(verdict, full[0])
    assert (verdict.finding.kind, verdict.since_s) == (Kind.MISSED, 0.0)
    assert "nothing waits" not in words(verdict.finding)[0]
    for each in full[1:]:
        look(verdict, each)
    assert (verdict.finding.kind, verdict.since_s) == (Kind.MEMORY, 0.0)


def test_a_start_hides_no_full_caches() -> None:
    fresh = backend("b", state="starting", can_serve=False, starting_s=9.0)
    full = found(FULL, fresh, **queue(WaitReason.KV_CACHE, waiting=28))
    assert full.kind is Kind.MEMORY
    assert found(FINE, fresh, **queue(WaitReason.SEQUENCES)).kind is Kind.STARTING


def test_one_cause_follows_another() -> None:
    seconds = [moment(float(at), FULL, **queue(WaitReason.KV_CACHE)) for at in range(20)]
    seconds += [moment(float(at), FINE, **queue(WaitReason.REQUESTS)) for at in range(20, 40)]
    kinds = [line.split()[1] for line in played(*seconds)]
    assert kinds == ["memory", "waiting"]


def test_the_figures_are_those_of_now() -> None:
    verdict = Verdict(0.0)
    for at in range(20):
        look(verdict, moment(float(at), FULL, **queue(WaitReason.KV_CACHE, waiting=10 + at)))
    assert verdict.finding.figures["waiting"] > 20
    assert verdict.since_s < 10.0


def test_of_a_cause_the_worst_is_remembered() -> None:
    verdict = Verdict(0.0)
    for at, oldest_s in enumerate([2.0] * 10 + [9.0] * 10 + [1.2] * 10):
        look(verdict, moment(float(at), FULL, **queue(WaitReason.KV_CACHE, oldest_s=oldest_s)))
    assert verdict.finding.figures["wait_s"] == 1.2
    assert verdict.worst.figures["wait_s"] == 9.0


def test_another_backend_that_is_slow_is_another_cause() -> None:
    """Both have the same kind, and "since" is of the one that is named."""
    first = [backend("a"), backend("b", pace=Pace(decode=9.0)), backend("c")]
    then = [backend("a"), backend("b"), backend("c", pace=Pace(decode=9.0))]
    seconds = [moment(float(at), *first) for at in range(20)]
    seconds += [moment(float(at), *then) for at in range(20, 40)]
    assert played(*seconds) == ["3: uneven since 0", "23: uneven since 20"]
