"""The simulated engine's arithmetic: steps, budget, KV blocks, order."""

from dataclasses import replace

import pytest

from bench.sim.engine import Engine, Sequence
from bench.sim.profiles import PROFILES, Profile

PLAIN = Profile(
    "plain",
    prefill_tokens_per_s=1_000.0,
    max_batched_tokens=100,
    step_base_s=0.01,
    step_s_per_stream=0.001,
    max_num_seqs=8,
    kv_tokens=1_600,
)


class Nobody:
    def token(self) -> None: ...


def sequence(prompt: int, tokens: int, stall_at: int | None = None) -> Sequence:
    return Sequence(prompt, tokens, Nobody(), stall_at)


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


def test_serial_prefill_runs_one_prompt_at_a_time_at_the_exact_rate() -> None:
    prompts = [sequence(tokens, 1) for tokens in (5_000, 1_000, 20_000)]
    engine = loaded(PROFILES["serial-10k"], *prompts)
    first_tokens = {emitted: at_s for at_s, emissions in run(engine) for emitted in emissions}
    assert [first_tokens[prompt] for prompt in prompts] == pytest.approx([0.5, 0.6, 2.6])


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
    assert usages == [2] * 16 + [3] * 2


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
