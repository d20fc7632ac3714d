"""What a backend's cache really held, and where sessions were."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease
from penstock.balancing.prefix_cache.hit_rate import CLIENTS_MAX, KINDS, REPORT_TOKENS_MAX, HitRates
from penstock.balancing.prefix_cache.index import BLOCKS_MAX
from penstock.balancing.session_homes import SESSIONS_MAX, SessionHomes

BLOCKS = tuple(range(100))
ASK = Ask("/", prompt_tokens=16_000, stream=True, blocks=BLOCKS, block_tokens=160.0)


def report(at_s: float, hits: int, queries: int = 10**9, generated: int = 0) -> EngineReport:
    return EngineReport(
        at_s, prefix_queries_tokens=queries, prefix_hits_tokens=hits, generated_tokens=generated
    )


def turn(backend: Backend, told: tuple[int, int | None] | None = None) -> None:
    lease = Lease(backend, ASK, 0.0)
    lease.first_token(1.0)
    if told is not None:  # the tokens of the prompt, and those that were found
        lease.settle(*told)
    lease.complete(2.0)


def test_all_that_was_sent_is_expected_at_first() -> None:
    backend = Backend("a", "")
    assert backend.cache.cached_tokens(ASK) == 0
    turn(backend)
    assert backend.cache.cached_tokens(ASK) == ASK.prompt_tokens - 1


def test_a_backend_that_finds_half_is_believed_within_a_hundred_answers() -> None:
    backend = Backend("a", "")
    for _ in range(100):
        turn(backend, (16_000, 8_000))
    assert backend.cache.hits.ratio == pytest.approx(0.5, abs=0.02)
    assert backend.cache.cached_tokens(ASK) == pytest.approx(8_000, rel=0.05)


def test_an_estimate_that_was_off_is_not_the_caches_fault() -> None:
    backend = Backend("a", "")
    for _ in range(200):
        turn(backend, (8_000, 7_999))
    assert backend.cache.hits.ratio == 1.0


def test_a_small_shortfall_is_that_of_prompts_wholly_gone() -> None:
    backend = Backend("a", "")
    for number in range(200):
        turn(backend, (16_000, 0 if number % 10 == 0 else 15_999))
    assert backend.cache.cached_tokens(ASK) == 15_999


def test_where_answers_tell_nothing_the_metrics_do() -> None:
    """Prefix caching is off: no hits, however many are expected."""
    backend = Backend("a", "")
    backend.take(report(0.0, 0))
    for second in range(1, 200):
        turn(backend, (16_000, None))
        backend.take(report(float(second), 0))
    assert backend.cache.cached_tokens(ASK) < 0.1 * ASK.prompt_tokens


def test_what_answers_tell_is_not_asked_of_the_metrics_again() -> None:
    """Half of the answers tell that all was found; of the others nothing was."""
    backend = Backend("a", "")
    hits = 0
    backend.take(report(0.0, hits))
    for second in range(1, 200):
        turn(backend, (16_000, 15_999))
        turn(backend, (16_000, None))
        hits += 15_999
        backend.take(report(float(second), hits))
    assert backend.cache.hits.ratio == pytest.approx(0.5, abs=0.05)


def test_one_answer_that_tells_does_not_silence_the_metrics() -> None:
    backend = Backend("a", "")
    backend.take(report(0.0, 0))
    turn(backend, (16_000, 0))
    for second in range(1, 200):
        turn(backend, (16_000, None))
        backend.take(report(float(second), 0))
    assert backend.cache.hits.ratio < 0.1


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_prompts_that_take_longer_than_reports_are_far_apart(share: float) -> None:
    """An engine counts hits as it begins, ten reports before the first token is there."""
    backend = Backend("a", "")
    backend.take(report(0.0, 0))
    turn(backend)
    hits, answering = 0, []
    for second in range(1, 400):
        if second % 4 == 0:
            answering.append((second, Lease(backend, ASK, float(second))))
            hits += round(share * (ASK.prompt_tokens - 1))
        while answering and answering[0][0] <= second - 10:
            lease = answering.pop(0)[1]
            lease.first_token(float(second))
            lease.settle(16_000, None)
            lease.complete(float(second))
        backend.take(report(float(second), hits))
    assert backend.cache.hits.ratio == pytest.approx(share, abs=0.05)
    for _, lease in answering:
        lease.end(400.0)
    assert backend.cache.awaited_tokens == 0


def test_what_came_before_the_first_report_is_held_against_nobody() -> None:
    backend = Backend("a", "")
    for _ in range(1_000):
        turn(backend, (16_000, None))
    hits = 10**7
    backend.take(report(0.0, hits))
    for second in range(1, 10):
        turn(backend, (16_000, None))
        hits += 15_999
        backend.take(report(float(second), hits))
    assert backend.cache.hits.ratio == 1.0


def test_estimates_that_are_half_of_it_are_not_the_caches_fault() -> None:
    """One request at a time, its answer five reports later."""
    backend = Backend("a", "")
    backend.take(report(0.0, 0))
    turn(backend)
    hits = 0
    for number in range(60):
        lease = Lease(backend, ASK, 0.0)
        hits += 2 * (ASK.prompt_tokens - 1)
        for second in range(5):
            backend.take(report(5.0 * number + second + 1, hits))
        lease.settle(32_000, None)
        lease.complete(1.0)
        backend.take(report(5.0 * number + 5.5, hits))
    assert backend.cache.hits.ratio == 1.0


def test_hits_of_others_make_up_for_no_more_than_is_in_flight() -> None:
    backend = Backend("a", "")
    backend.take(report(0.0, 0))
    hits = 10**9  # before anything of ours
    backend.take(report(1.0, hits))
    for second in range(2, 200):
        turn(backend, (16_000, None))
        backend.take(report(float(second), hits))
    assert backend.cache.hits.ratio < 0.2


def test_finding_more_makes_up_for_nothing() -> None:
    hits = HitRates()
    for _ in range(300):
        hits.told(("a", 0), 1_000, 0)
        hits.told(("a", 0), 10, 100_000)
    assert hits.of(("a", 0)) < 0.1


def test_half_of_more_than_one_report_counts_is_half() -> None:
    hits, most = HitRates(), int(REPORT_TOKENS_MAX)
    for _ in range(20):
        hits.told(("a", 0), 4 * most, 2 * most)
    assert hits.of(("a", 0)) == pytest.approx(0.5, abs=0.05)


def test_a_lack_is_first_that_of_the_client_of_which_the_least_was_found() -> None:
    hits = HitRates()
    for number in range(54):
        for client in ("never", "always") if number > 3 else ("never",):
            hits.begun((client, 0), 8_000)
        hits.take(8_000 if number > 3 else 0, 0)
    assert hits.of(("always", 0)) == 1.0
    assert hits.of(("never", 0)) < 0.3


def test_where_nothing_is_found_any_more_that_is_learnt_beside_one_who_never_found() -> None:
    hits = HitRates()
    for number in range(300):
        hits.begun(("never", 0), 8_000)
        hits.begun(("always", 0), 8_000)
        hits.take(8_000 if number < 100 else 0, 0)
    assert hits.of(("always", 0)) < 0.2


def test_what_is_remembered_is_bounded() -> None:
    hits = HitRates()
    for number in range(3 * CLIENTS_MAX):
        hits.begun((f"client {number}", 0), 8_000)
        hits.told((f"client {number}", 0), 8_000, 0)
    assert len(hits._clients) == len(hits._expected) == CLIENTS_MAX
    assert not hits.whole
    for number in range(CLIENTS_MAX):
        hits.told((f"other {number}", 0), 8_000, 8_000)
    assert hits.whole


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
    assert backend.cache.cached_tokens(ASK) == 0
    assert backend.prefill_speed.work_s == Backend("b", "").prefill_speed.work_s


def test_a_sleeping_engine_has_let_its_cache_go() -> None:
    backend = Backend("a", "")
    turn(backend)
    backend.take(EngineReport(1.0, awake=False))
    assert backend.cache.cached_tokens(ASK) == 0


def test_the_index_is_as_large_as_the_cache() -> None:
    backend = Backend("a", "")
    backend.take(EngineReport(1.0, kv_tokens=16_000))
    assert backend.cache.index.capacity == 100


def test_the_index_is_bounded_whatever_an_engine_says() -> None:
    backend = Backend("a", "")
    backend.take(EngineReport(1.0, kv_tokens=10**15))
    assert backend.cache.index.capacity == BLOCKS_MAX
    backend.take(EngineReport(2.0, kv_tokens=0))
    assert backend.cache.index.capacity == 1


def test_a_prompt_that_is_at_work_may_take_as_long_as_if_nothing_were_cached() -> None:
    """That it is, is only a guess: who is patient with an engine must not rely on it."""
    backend = Backend("a", "")
    turn(backend)
    cold_s = 16_000 * 1.25 * backend.prefill_speed.work_s
    Lease(backend, ASK, 3.0)
    assert backend.wait_s(3.0) < 0.01 * cold_s
    assert backend.head_prefill_s == pytest.approx(cold_s)


def test_what_no_engine_works_on_stands_in_nobodys_way() -> None:
    backend = Backend("a", "")
    Lease(backend, Ask("/tokenize", prompt_tokens=10_000, generates=False, engine=False), 0.0)
    Lease(backend, ASK.changed(blocks=()), 0.0)
    whole_s = backend.wait_s(0.0)
    assert backend.wait_s(whole_s / 2) == pytest.approx(whole_s / 2)


def test_the_last_home_counts() -> None:
    homes = SessionHomes()
    homes.put("s", "a")
    homes.put("s", "b")
    assert homes.find("s") == "b"
    assert homes.find("t") is homes.find(None) is None


def test_homes_are_bounded_and_the_oldest_go() -> None:
    homes = SessionHomes()
    for number in range(SESSIONS_MAX + 10):
        homes.put(str(number), "a")
    assert len(homes) == SESSIONS_MAX
    assert homes.find("0") is None
    assert homes.find("10") is not None


# Whose prompts speak for whom --------------------------------------------------------------


def asked(client: str, text: int) -> Ask:
    blocks = tuple(text * 1_000_003 + each for each in range(100))
    return ASK.changed(client=client, blocks=blocks)


def answered(backend: Backend, ask: Ask, found: int | None) -> None:
    lease = Lease(backend, ask, 0.0)
    lease.first_token(1.0)
    lease.settle(ask.prompt_tokens, found)
    lease.complete(2.0, 1, ask.prompt_tokens)


def test_a_client_whose_prompts_are_never_found_speaks_for_itself() -> None:
    backend = Backend("a", "")
    mine, other = asked("mine", 1), asked("other", 2)
    for _ in range(100):
        answered(backend, other, 0)
        answered(backend, other, 0)
        answered(backend, mine, 15_999)
    assert backend.cache.cached_tokens(mine) == 15_999
    assert backend.cache.cached_tokens(other) < 1_000


def test_nor_of_clients_that_look_alike_does_a_text_speak_for_others() -> None:
    backend = Backend("a", "")
    for turn in range(100):
        for _ in range(3):
            answered(backend, asked("", 7), 0)
        answered(backend, asked("", 1_000 + turn), None)
        answered(backend, asked("", 1_000 + turn), 15_999)
    for text in range(1_090, 1_100):
        if asked("", text).blocks[-1] % KINDS != asked("", 7).blocks[-1] % KINDS:
            assert backend.cache.cached_tokens(asked("", text)) == 15_999


def test_nor_where_only_the_metrics_tell() -> None:
    """Both are answered between two reports, now and then only one of them."""
    backend = Backend("a", "")
    mine, other = asked("mine", 1), asked("other", 2)
    answered(backend, mine, None)
    answered(backend, other, None)
    backend.take(report(0.0, 0))
    hits = 0
    for second in range(1, 300):
        if second % 3:
            answered(backend, mine, None)
            hits += 15_999
        if second % 2:
            answered(backend, other, None)
        backend.take(report(float(second), hits))
    assert backend.cache.cached_tokens(mine) == 15_999
    assert backend.cache.cached_tokens(other) < 4_000


def test_nor_do_prompts_that_are_never_found_take_what_was_found_of_long_answers() -> None:
    """An engine finds a prompt when it begins, and its answer may take twenty reports."""
    backend = Backend("a", "")
    mine, other = asked("mine", 1), asked("other", 2)
    answered(backend, mine, None)
    answered(backend, other, None)
    backend.take(report(0.0, 0))
    hits, answering = 0, []
    for second in range(1, 400):
        if second % 2:
            lease = Lease(backend, mine, float(second))
            lease.first_token(second + 0.1)
            answering.append(lease)
            hits += 15_999
        answered(backend, other, None)
        if len(answering) > 10:
            lease = answering.pop(0)
            lease.settle(16_000, None)
            lease.complete(float(second))
        backend.take(report(float(second), hits))
    assert backend.cache.cached_tokens(mine) == 15_999
    assert backend.cache.cached_tokens(other) < 4_000


def test_where_answers_tell_what_was_found_one_that_does_not_found_nothing() -> None:
    """Older vLLMs leave out a zero. The metrics are not asked: others' hits are there, too."""
    backend = Backend("a", "")
    mine, other = asked("mine", 1), asked("other", 2)
    backend.take(report(0.0, 0))
    for second in range(1, 50):
        answered(backend, mine, 15_999)
        answered(backend, other, None)
        backend.take(report(float(second), 10**6 * second))
    assert backend.cache.cached_tokens(mine) == 15_999
    assert backend.cache.cached_tokens(other) < 1_000


def test_many_texts_that_are_never_found_speak_for_their_sender_alone() -> None:
    """Of all kinds, from one address, before anybody else is known: nor for who is new."""
    backend = Backend("a", "")
    attacker = [asked("10.0.0.1", text) for text in range(100)]
    for ask in attacker:
        for _ in range(8):
            answered(backend, ask, 0)
    assert backend.cache.cached_tokens(attacker[-1]) < 4_000
    mine = [asked("10.0.0.2", text) for text in range(1_000, 1_010)]
    for ask in mine:
        answered(backend, ask, None)
        assert backend.cache.cached_tokens(ask) == 15_999
    answered(backend, mine[0], 15_999)
    assert backend.cache.cached_tokens(mine[1]) == 15_999


def test_two_that_find_nothing_speak_for_who_is_new() -> None:
    """Prefix caching is off."""
    backend = Backend("a", "")
    for client in ("a", "b"):
        for text in range(20):
            answered(backend, asked(client, text), 0)
            answered(backend, asked(client, text), 0)
    new = asked("new", 0)
    assert backend.cache.cached_tokens(new) < 10_000


def test_one_absurd_count_decides_nothing() -> None:
    backend = Backend("a", "")
    turn(backend)
    for _ in range(50):
        turn(backend, (16_000, 15_999))
    turn(backend, (10**18, 0))
    turn(backend, (0, 10**18))
    for _ in range(5):
        turn(backend, (16_000, 15_999))
    assert backend.cache.hits.ratio == 1.0
