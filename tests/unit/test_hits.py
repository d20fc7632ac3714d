"""What a backend's cache really held, and where sessions were."""

import pytest

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.engine_report import EngineReport
from balancing.hit_correction import HitCorrection
from balancing.lease import Lease
from balancing.session_homes import FORGET_S, SESSIONS_MAX, SessionHomes

BLOCKS = tuple(range(100))
ASK = Ask("/", prompt_tokens=16_000, stream=True, blocks=BLOCKS, block_tokens=160.0)


def report(at_s: float, hits: int, queries: int = 10**9, generated: int = 0) -> EngineReport:
    return EngineReport(
        at_s, prefix_queries_tokens=queries, prefix_hits_tokens=hits, generated_tokens=generated
    )


def turn(backend: Backend) -> Lease:
    lease = Lease(backend, ASK, 0.0)
    lease.first_token(1.0)
    lease.complete(2.0)
    return lease


def test_all_that_was_sent_is_expected_at_first() -> None:
    backend = Backend("a", "")
    assert backend.cached_tokens(ASK, 0.0) == 0
    turn(backend)
    assert backend.cached_tokens(ASK, 0.0) == ASK.prompt_tokens - 1


def test_a_backend_that_finds_half_is_believed_within_a_hundred_answers() -> None:
    backend = Backend("a", "")
    for _ in range(100):
        turn(backend).settle(16_000, 8_000)
    assert backend.hits.ratio == pytest.approx(0.5, abs=0.02)
    assert backend.cached_tokens(ASK, 0.0) == pytest.approx(8_000, rel=0.05)


def test_an_estimate_that_was_off_is_not_the_caches_fault() -> None:
    """All was found, of a prompt half as long as was thought."""
    backend = Backend("a", "")
    for _ in range(200):
        turn(backend).settle(8_000, 7_999)
    assert backend.hits.ratio == 1.0


def test_a_small_shortfall_is_that_of_prompts_wholly_gone() -> None:
    backend = Backend("a", "")
    for number in range(200):
        turn(backend).settle(16_000, 0 if number % 10 == 0 else 15_999)
    assert backend.cached_tokens(ASK, 0.0) == 15_999


def test_where_answers_tell_nothing_the_metrics_do() -> None:
    """Prefix caching is off: no hits, however many are expected."""
    backend = Backend("a", "")
    backend.take(report(0.0, 0))
    for second in range(1, 200):
        turn(backend).settle(16_000, None)
        backend.take(report(float(second), 0))
    assert backend.cached_tokens(ASK, 0.0) < 0.1 * ASK.prompt_tokens


def test_what_answers_tell_is_not_asked_of_the_metrics_again() -> None:
    """Half of the answers tell that all was found; of the others nothing was."""
    backend = Backend("a", "")
    hits = 0
    backend.take(report(0.0, hits))
    for second in range(1, 200):
        turn(backend).settle(16_000, 15_999)
        turn(backend).settle(16_000, None)
        hits += 15_999
        backend.take(report(float(second), hits))
    assert backend.hits.ratio == pytest.approx(0.5, abs=0.05)


def test_one_answer_that_tells_does_not_silence_the_metrics() -> None:
    backend = Backend("a", "")
    backend.take(report(0.0, 0))
    turn(backend).settle(16_000, 0)
    for second in range(1, 200):
        turn(backend).settle(16_000, None)
        backend.take(report(float(second), 0))
    assert backend.hits.ratio < 0.1


def test_finding_more_makes_up_for_nothing() -> None:
    hits = HitCorrection()
    for _ in range(300):
        hits.observe(1_000.0, 0.0)
        hits.observe(10.0, 100_000.0)
    assert hits.ratio < 0.1


def test_what_is_queued_is_what_is_not_in_the_cache() -> None:
    backend = Backend("a", "")
    turn(backend)
    lease = Lease(backend, ASK, 3.0)
    assert backend.queued_prefill_tokens == 1
    lease.first_token(3.1)
    assert backend.active_decode_tokens == ASK.prompt_tokens
    lease.end(4.0)
    assert backend.own.idle


def test_an_engine_that_began_anew_holds_nothing_and_is_measured_anew() -> None:
    backend = Backend("a", "")
    backend.take(report(0.0, 500, generated=1_000))
    turn(backend)
    backend.prefill_speed.observe(1_000.0, 10.0)
    backend.take(report(1.0, 0, generated=5))
    assert backend.cached_tokens(ASK, 0.0) == 0
    assert backend.prefill_speed.work_s == Backend("b", "").prefill_speed.work_s


def test_a_sleeping_engine_has_let_its_cache_go() -> None:
    backend = Backend("a", "")
    turn(backend)
    backend.take(EngineReport(1.0, awake=False))
    assert backend.cached_tokens(ASK, 0.0) == 0


def test_the_index_is_as_large_as_the_cache() -> None:
    backend = Backend("a", "")
    backend.take(EngineReport(1.0, kv_tokens=16_000))
    assert backend.prefixes.capacity == 100


def test_the_last_home_counts_and_fades() -> None:
    homes = SessionHomes()
    homes.put("s", "a", 1_000, 0.0)
    homes.put("s", "b", 2_000, 10.0)
    home = homes.find("s")
    assert home is not None
    assert (home.backend, home.held_tokens(10.0)) == ("b", 2_000.0)
    assert home.held_tokens(10.0 + FORGET_S) == pytest.approx(2_000 / 2.718, rel=0.01)
    assert homes.find("t") is homes.find(None) is None


def test_homes_are_bounded_and_the_oldest_go() -> None:
    homes = SessionHomes()
    for number in range(SESSIONS_MAX + 10):
        homes.put(str(number), "a", 1, 0.0)
    assert len(homes) == SESSIONS_MAX
    assert homes.find("0") is None
    assert homes.find("10") is not None


def test_a_prompt_with_images_is_known_by_its_session() -> None:
    homes = SessionHomes()
    homes.put("s", "a", 5_000, 0.0)
    ask = Ask("/", prompt_tokens=6_000, media_parts=1, session="s", home=homes.find("s"))
    assert Backend("a", "").cached_tokens(ask, 0.0) == 5_000
    assert Backend("b", "").cached_tokens(ask, 0.0) == 0


def test_several_prompts_with_images_and_a_session_are_given_back() -> None:
    homes = SessionHomes()
    homes.put("s", "a", 5_000, 0.0)
    backend = Backend("a", "")
    ask = Ask(
        *("/", None, 400), prompts=4, media_parts=1, stream=True, session="s", home=homes.find("s")
    )
    lease = Lease(backend, ask, 0.0)
    for index in range(4):
        lease.first_token(1.0, index)
    lease.complete(2.0)
    assert backend.own.idle
