"""What one client can do to the others' time to first token: little."""

from statistics import mean
from typing import Any

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


NEVER_FOUND: dict[str, Any] = {"per_s": 1.0, "tokens": 8_192, "again": True, "reads": False}
# What one client does; how much of the hit rate it may cost, and how often the mean TTFT.
ATTACKS: dict[str, tuple[dict[str, Any], float, float]] = {
    "refused at once": ({"per_s": 4.0, "tokens": 327_000, "refused_s": 0.02}, 0.05, 1.5),
    # The same text once a second, of which the engine reads no cache.
    "never found": (NEVER_FOUND | {"tenant": "attacker"}, 0.07, 2.0),
    "never found, of an address": (NEVER_FOUND | {"tenant": ""}, 0.07, 2.0),
    "spellings": ({"per_s": 10.0, "tokens": 4_096, "spelt": True}, 1.0, 1.6),
    "long spellings": ({"per_s": 16.0, "tokens": 16_384, "spelt": True}, 1.0, 1.6),
    # Its images never come, and its client leaves.
    "no engine reached": ({"per_s": 1.0, "tokens": 100_000, "leaves_s": 4.9}, 1.0, 1.8),
    # A grammar to compile takes three seconds before each, wherever it is asked.
    "slow by themselves": ({"per_s": 4.0, "tokens": 320, "late_s": 3.0}, 0.05, 1.5),
    "slow and alike": ({"per_s": 4.0, "tokens": 8_192, "again": True, "late_s": 3.0}, 0.05, 1.5),
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_what_one_client_sends_costs_the_others_little(calm: dict[str, float], kind: str) -> None:
    attack, lost, slower = ATTACKS[kind]
    attacked = experiment()
    attacked.attack(**attack)
    figures = attacked.play(conversations(SECONDS, 0.8)).figures()
    assert figures["hit_rate"] > calm["hit_rate"] - lost
    assert figures["ttft_mean_s"] < slower * calm["ttft_mean_s"]


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
