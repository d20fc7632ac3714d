"""The simulated engine's arithmetic: steps, budget, KV blocks, order."""

from collections.abc import Hashable
from collections.abc import Sequence as List
from dataclasses import replace
from random import Random

import pytest

from penstock.bench.sim.engine import Engine, KvCache, Sequence
from penstock.bench.sim.profiles import GPUS, PROFILES, Profile, Work
from penstock.bench.sim.pump import ApiServer

Hashes = List[Hashable]

PLAIN = Profile(
    "plain",
    prefill_tokens_per_s=1_000.0,
    max_batched_tokens=100,
    step_base_s=0.01,
    step_s_per_stream=0.001,
    max_num_seqs=8,
    kv_tokens=1_600,
    prefix_caching=True,
)


class Nobody:
    def token(self) -> None: ...


def sequence(
    prompt: int, tokens: int, stall_at: int | None = None, hashes: Hashes = ()
) -> Sequence:
    return Sequence(prompt, tokens, Nobody(), stall_at, hashes)


def loaded(profile: Profile, *sequences: Sequence) -> Engine:
    engine = Engine(profile)
    for each in sequences:
        engine.submit(each, 0.0)
    return engine


def run(engine: Engine) -> list[tuple[float, list[Sequence]]]:
    """Every step until the engine is quiet: when its tokens come, and whose."""
    steps: list[tuple[float, list[Sequence]]] = []
    now_s = 0.0
    while True:
        duration_s, emissions = engine.step(now_s)
        if not duration_s:
            return steps
        now_s += duration_s
        steps.append((now_s, emissions))


def test_one_request_takes_one_prefill_step_and_one_step_per_further_token() -> None:
    one = sequence(50, 3)
    engine = loaded(PLAIN, one)
    times = [at_s for at_s, _ in run(engine)]
    assert times == pytest.approx([0.06, 0.071, 0.082])
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert (engine.finished_total, engine.generation_tokens_total) == (1, 3)
    assert engine.prompt_tokens_total == 50


def test_a_long_prompt_is_prefilled_in_chunks_and_slows_the_streams_beside_it() -> None:
    short, long = sequence(10, 9), sequence(250, 1)
    engine = loaded(PLAIN, short)
    engine.step(0.0)
    engine.submit(long, 0.0)
    steps = [engine.step(0.0) for _ in range(3)]
    assert [emissions for _, emissions in steps] == [[short], [short], [short, long]]
    # 99 tokens beside one stream, twice; then the last 52.
    assert [duration_s for duration_s, _ in steps] == pytest.approx([0.11, 0.11, 0.063])


def test_a_prompt_waits_until_the_whole_of_it_fits_the_kv_cache() -> None:
    first, second = sequence(1_000, 2), sequence(800, 1)
    engine = loaded(PLAIN, first, second)
    for _ in range(10):
        engine.step(0.0)
        assert (engine.running, engine.waiting) == (1, 1)
    assert engine.kv_usage == pytest.approx(63 / 100)
    assert [emissions for _, emissions in run(engine) if emissions] == [[first], [second]]


def test_order_is_first_come_first_served_even_if_a_later_prompt_would_fit() -> None:
    engine = loaded(PLAIN, sequence(1_000, 50), sequence(800, 1), sequence(16, 1))
    for _ in range(20):
        engine.step(0.0)
    assert (engine.running, engine.waiting) == (1, 2)


def test_no_more_than_max_num_seqs_run() -> None:
    engine = loaded(PLAIN, *(sequence(1, 5) for _ in range(12)))
    engine.step(0.0)
    assert (engine.running, engine.waiting) == (8, 4)


def test_generated_tokens_take_kv_blocks() -> None:
    engine = loaded(PLAIN, sequence(16, 40))
    usages = []
    for _ in range(18):
        engine.step(0.0)
        usages.append(round(engine.kv_usage * 100))
    assert usages == [1] + [2] * 16 + [3]  # the last token is computed in the next step


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_abort_frees_everything_at_once_in_every_phase(steps: int) -> None:
    doomed = sequence(150, 10)
    engine = loaded(PLAIN, doomed)
    for _ in range(steps):
        engine.step(0.0)
    assert engine.abort(doomed)
    assert not engine.abort(doomed)
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert engine.aborted_total == 1
    assert engine.step(0.0) == (0.0, [])


def test_a_sequence_that_only_prefills_is_emitted_once_without_a_token() -> None:
    embedding = sequence(30, 0)
    engine = loaded(PLAIN, embedding)
    assert [emissions for _, emissions in run(engine)] == [[embedding]]
    assert (embedding.generated, engine.finished_total) == (0, 1)


def test_a_stalled_sequence_stays_running_and_stops_nobody_else() -> None:
    hung, healthy = sequence(10, 5, stall_at=2), sequence(10, 5)
    engine = loaded(PLAIN, hung, healthy)
    run(engine)
    assert (hung.generated, healthy.generated) == (2, 5)
    assert (engine.running, engine.finished_total) == (1, 1)
    assert engine.abort(hung)
    assert engine.idle


def test_queue_time_counts_until_admission() -> None:
    engine = loaded(replace(PLAIN, max_num_seqs=1), sequence(10, 1), sequence(10, 1))
    engine.step(0.0)
    engine.step(3.0)
    assert engine.queue_time_s_total == 3.0


TINY = replace(PLAIN, kv_tokens=64)  # four blocks


def test_the_youngest_is_driven_out_and_starts_over_before_all_others() -> None:
    """Worked by hand: two prompts of 31 tokens hold two blocks each, and both need a third."""
    old, young, waiting = sequence(31, 4), sequence(31, 4), sequence(1, 1)
    engine = loaded(TINY, old, young, waiting)
    tokens = [emissions for _, emissions in run(engine)]
    assert tokens[:2] == [[old, young], [old, young]]  # 32 tokens are computed: all four are full
    # The third block of the old one costs the young one both of its own: 33 tokens to compute
    # anew, three blocks, which are free once the old one has its four tokens.
    assert tokens[2:] == [[old], [old], [young, waiting], [young]]
    assert (engine.preemptions_total, young.preemptions) == (1, 1)
    assert (old.generated, young.generated, engine.finished_total) == (4, 4, 3)
    assert engine.prompt_tokens_total == 63  # counted once
    assert engine.kv_usage == 0.0


def test_a_step_that_drives_one_out_admits_nobody() -> None:
    old, young = sequence(31, 4), sequence(31, 4)
    engine = loaded(TINY, old, young)
    engine.step(0.0)
    engine.step(0.0)
    late = sequence(1, 1)
    engine.submit(late, 0.0)
    engine.step(0.0)
    assert (engine.running, engine.waiting) == (1, 2)


def test_a_prefix_in_the_cache_costs_nothing_but_the_last_token_is_computed() -> None:
    blocks = ["a", "b", "c", "d"]
    engine = loaded(PLAIN, sequence(64, 1, hashes=blocks))
    (first_s, _), *_ = run(engine)
    again, longer, other = (
        sequence(64, 1, hashes=blocks),
        sequence(80, 1, hashes=[*blocks, "e"]),
        sequence(64, 1, hashes=["x", "b", "c", "d"]),
    )
    times = []
    for each in (again, longer, other):
        engine.submit(each, 0.0)
        times.append(run(engine)[0][0])
    # 64 tokens; the last block of the 64; 16 beyond the cached 64; all of another beginning.
    assert [first_s, *times] == pytest.approx([0.074, 0.026, 0.026, 0.074])
    assert [each.cached_tokens for each in (again, longer, other)] == [48, 64, 0]
    assert (engine.cache_queries_total, engine.cache_hits_total) == (272, 112)


def test_sequences_with_one_beginning_share_its_blocks() -> None:
    blocks = list("abcdef")
    engine = loaded(PLAIN, sequence(96, 9, hashes=blocks))
    engine.step(0.0)
    engine.submit(sequence(112, 9, hashes=[*blocks, "g"]), 0.0)
    engine.step(0.0)
    assert round(engine.kv_usage * 100) == 6 + 1 + 1  # each has a block of its own beside the six


def test_blocks_free_for_longest_go_first_and_of_one_prompt_its_end() -> None:
    engine = loaded(TINY, sequence(32, 1, hashes=["a", "b"]))
    run(engine)
    engine.submit(sequence(32, 1, hashes=["c", "d"]), 0.0)
    run(engine)
    engine.submit(sequence(16, 1, hashes=["e"]), 0.0)  # takes the place of b
    run(engine)
    assert engine.cache.cached(["a", "b"]) == (1, 1)
    assert engine.cache.cached(["c", "d"]) == (2, 2)
    assert engine.cache.cached(["e"]) == (1, 1)


def test_a_recomputed_sequence_finds_its_own_beginning() -> None:
    old = sequence(31, 4, hashes=["a"])
    young = sequence(31, 4, hashes=["b"])
    engine = loaded(TINY, old, young)
    run(engine)
    assert (engine.preemptions_total, young.cached_tokens) == (1, 0)
    assert engine.cache.cached(["b"]) == (1, 1)


@pytest.mark.parametrize(
    ("name", "tokens", "measured_ms"),
    [
        # Vidur's linear layers (with its all-reduce where there is one), nothing else.
        ("8b-1xa100", 512, 34.6),
        ("8b-1xa100", 2_048, 146.0),
        ("8b-1xa100", 8_192, 545.0),
        ("8b-1xh100", 4_096, 83.5 * 1.06),
        ("70b-4xa100", 8_192, 1_280.8 + 8_192 * 0.0236),
    ],
)
def test_gpu_profiles_are_what_was_measured(name: str, tokens: int, measured_ms: float) -> None:
    linear = replace(GPUS[name], attention_s=0.0)
    step_ms = linear.step_s(Work(prefill_tokens=tokens)) * 1e3
    assert step_ms == pytest.approx(measured_ms, rel=0.1)


def test_a_gpu_reads_its_weights_and_the_kv_of_its_streams() -> None:
    profile = PROFILES["8b-1xh100"]
    work = Work()
    for _ in range(100):
        work.add(1, 1_000, decodes=True)
    assert profile.step_s(work) == pytest.approx(0.0015 + 0.0059 + 100_000 * 49e-9 + 100 * 5e-6)
    long = Work()
    long.add(8_192, 0, decodes=False)
    assert profile.step_s(long) == pytest.approx(0.0015 + 8_192 * 21.6e-6 + 8_192 * 4_096 * 1.31e-9)


def test_noise_is_the_seeds_and_has_the_mean_of_no_noise() -> None:
    noisy = replace(PLAIN, noise=0.05)
    runs = [Engine(noisy, Random(seed)) for seed in (1, 1, 2)]
    for engine in runs:
        engine.submit(sequence(50, 400), 0.0)
    ends = [run(engine)[-1][0] for engine in runs]
    assert ends[0] == ends[1] != ends[2]
    quiet = loaded(PLAIN, sequence(50, 400))
    assert ends[0] == pytest.approx(run(quiet)[-1][0], rel=0.02)


def test_the_api_server_takes_one_request_after_the_other() -> None:
    api = ApiServer(0.01)
    assert [api.ready_s(at_s) for at_s in (1.0, 1.0, 1.005, 2.0)] == pytest.approx(
        [1.01, 1.02, 1.03, 2.01]
    )
    assert ApiServer(0.0).ready_s(1.0) == 1.0


def test_a_forgotten_cache_holds_what_is_in_use_only() -> None:
    cache = KvCache(4)
    cache.take(2)
    assert cache.know("a")
    assert cache.know("b")
    cache.release(["b"], 0)
    cache.forget()
    assert cache.cached(["a"]) == (1, 0)
    assert cache.cached(["b"]) == (0, 0)
    assert cache.free == 3


def test_free_blocks_that_nobody_can_share_are_taken_first() -> None:
    """As in vLLM 0.32; beside a real one the other order found fewer tokens in its cache."""
    cache = KvCache(3)
    cache.take(3)
    assert cache.know("old")
    cache.release(["old"], 1)  # one block is free with a name, one without
    cache.take(1)
    assert cache.cached(["old"]) == (1, 1)
