"""What one client can do to the others' time to first token: little."""

from statistics import mean

import pytest

from tests.sim.attackers import conversations, experiment

SECONDS = 120.0
# One seed of an attack that changes where much is sent says little.
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def calm() -> dict[str, float]:
    """The others alone."""
    alone = experiment()
    return alone.play(conversations(SECONDS, 0.8)).figures()


def test_prompts_that_are_refused_displace_nothing(calm: dict[str, float]) -> None:
    attacked = experiment()
    attacked.attack(per_s=4.0, tokens=327_000, refused_s=0.02)
    figures = attacked.play(conversations(SECONDS, 0.8)).figures()
    assert figures["hit_rate"] > calm["hit_rate"] - 0.05
    assert figures["ttft_mean_s"] < 1.5 * calm["ttft_mean_s"]


@pytest.mark.parametrize("told", [True, False])
def test_prompts_that_are_refused_after_a_while_are_no_work(
    calm: dict[str, float], told: bool
) -> None:
    """By the models' context where it is told, else by what became of those before."""
    attacked = experiment()
    for backend in attacked.known if told else ():
        backend.contexts = {None: 131_072}
    attacked.attack(per_s=4.0, tokens=327_000, refused_s=0.5)
    figures = attacked.play(conversations(SECONDS, 0.8)).figures()
    assert figures["hit_rate"] > calm["hit_rate"] - 0.03
    assert figures["ttft_mean_s"] < 1.25 * calm["ttft_mean_s"]


@pytest.mark.parametrize("per_s", [1.0, 4.0])
def test_text_that_no_engine_reads_teaches_nothing(calm: dict[str, float], per_s: float) -> None:
    """It looks like a long prompt, and nobody is told that it is none."""
    attacked = experiment()
    attacked.attack(per_s=per_s, tokens=24_000, real=10)
    figures = attacked.play(conversations(SECONDS, 0.8)).figures()
    assert figures["hit_rate"] > calm["hit_rate"] - 0.015
    assert figures["ttft_mean_s"] < 1.2 * calm["ttft_mean_s"]
    speeds = [backend.prefill_speed.work_per_s for backend in attacked.known]
    assert max(speeds) < 2 * min(speeds)
    steps_s = [backend.decode_speed.step_s for backend in attacked.known]
    assert max(steps_s) < 1.1 * min(steps_s)


def test_spellings_of_one_text_do_not_decide_how_fast_a_backend_looks(
    calm: dict[str, float],
) -> None:
    """The engine finds all of a long prompt in its cache, and nobody can know that it would."""
    spread = []
    for seed in SEEDS:
        attacked = experiment(seed)
        attacked.attack(per_s=0.5, tokens=60_000, spelt=True)
        figures = attacked.play(conversations(SECONDS, 0.8)).figures()
        speeds = [backend.prefill_speed.work_per_s for backend in attacked.known]
        spread.append(max(speeds) / min(speeds))
        assert figures["hit_rate"] > calm["hit_rate"] - 0.07
        assert figures["ttft_mean_s"] < 1.6 * calm["ttft_mean_s"]
    assert mean(spread) < 1.5


@pytest.mark.parametrize("tenant", ["attacker", ""])
def test_prompts_that_are_never_found_speak_for_themselves(
    calm: dict[str, float], tenant: str
) -> None:
    """The same text once a second, of which the engine reads no cache."""
    attacked = experiment()
    attacked.attack(per_s=1.0, tokens=8_192, again=True, reads=False, tenant=tenant)
    figures = attacked.play(conversations(SECONDS, 0.8)).figures()
    assert figures["hit_rate"] > calm["hit_rate"] - 0.07
    assert figures["ttft_mean_s"] < 2.0 * calm["ttft_mean_s"]


@pytest.mark.parametrize(("tokens", "per_s"), [(4_096, 10.0), (16_384, 16.0)])
def test_many_spellings_of_one_text_are_little_work(
    calm: dict[str, float], tokens: int, per_s: float
) -> None:
    attacked = experiment()
    attacked.attack(per_s=per_s, tokens=tokens, spelt=True)
    figures = attacked.play(conversations(SECONDS, 0.8)).figures()
    assert figures["ttft_mean_s"] < 1.6 * calm["ttft_mean_s"]


def test_prompts_that_never_reach_an_engine_drive_few_away(calm: dict[str, float]) -> None:
    """Their images never come, and their client leaves."""
    attacked = experiment()
    attacked.attack(per_s=1.0, tokens=100_000, leaves_s=4.9)
    figures = attacked.play(conversations(SECONDS, 0.8)).figures()
    assert figures["ttft_mean_s"] < 1.8 * calm["ttft_mean_s"]


def test_answers_that_begin_to_be_shown_late_are_not_queued_prompts() -> None:
    """The engine's reasoning is hidden, say. Beside as much work that is shown."""
    shown = experiment()
    shown.attack(per_s=2.0, tokens=2_048, output_tokens=750)
    expected = shown.play(conversations(SECONDS, 0.8)).figures()
    hidden = experiment()
    hidden.attack(per_s=2.0, tokens=2_048, output_tokens=750, shown_from=700)
    figures = hidden.play(conversations(SECONDS, 0.8)).figures()
    assert figures["ttft_mean_s"] < 1.3 * expected["ttft_mean_s"]
    steps_s = [backend.decode_speed.step_s for backend in hidden.known]
    assert max(steps_s) < 1.5 * min(steps_s)


@pytest.mark.parametrize("texts", [1, 60])
def test_nor_where_only_the_metrics_tell_what_was_found(texts: int) -> None:
    """Beside as much honest work: work that is hidden counts too little, so some meet it."""
    honest_s, attacked_s = [], []
    for seed in SEEDS:
        honest = experiment(seed, untold=True)
        honest.attack(per_s=4.0, tokens=8_192)
        expected = honest.play(conversations(SECONDS, 0.8, seed)).figures()
        attacked = experiment(seed, untold=True)
        attacked.attack(per_s=4.0, tokens=8_192, again=True, reads=False, texts=texts)
        figures = attacked.play(conversations(SECONDS, 0.8, seed)).figures()
        assert figures["hit_rate"] > expected["hit_rate"] - 0.1
        honest_s.append(expected["ttft_mean_s"])
        attacked_s.append(figures["ttft_mean_s"])
    assert mean(attacked_s) < 1.9 * mean(honest_s)  # 0.8 with one text, 1.7 with sixty


@pytest.mark.parametrize(("tokens", "again"), [(320, False), (8_192, True)])
def test_requests_that_are_slow_by_themselves_make_no_backend_look_slow(
    calm: dict[str, float], tokens: int, again: bool
) -> None:
    """A grammar to compile takes three seconds before each, wherever it is asked."""
    attacked = experiment()
    attacked.attack(per_s=4.0, tokens=tokens, again=again, late_s=3.0)
    figures = attacked.play(conversations(SECONDS, 0.8)).figures()
    assert figures["hit_rate"] > calm["hit_rate"] - 0.05
    assert figures["ttft_mean_s"] < 1.5 * calm["ttft_mean_s"]
