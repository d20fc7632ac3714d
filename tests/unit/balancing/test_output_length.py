"""How long answers will be: by the finest class that is known well enough, bounded."""

from random import Random

import pytest

from penstock.balancing.output_length import CLASSES_MAX, PRIOR_TOKENS, SAMPLES_MIN, OutputLength

CHAT = "/v1/chat/completions"


def taught(
    lengths: OutputLength,
    tokens: float,
    samples: int,
    tenant: str = "t",
    max_tokens: int | None = None,
) -> None:
    for _ in range(samples):
        lengths.observe(tenant, "m", CHAT, max_tokens, tokens)


def test_nothing_known_is_the_prior_within_the_clients_limit() -> None:
    lengths = OutputLength()
    assert lengths.expect("t", "m", CHAT, None) == PRIOR_TOKENS
    assert lengths.expect("t", "m", CHAT, 16) == 16


def test_the_finest_class_with_enough_samples_counts() -> None:
    lengths = OutputLength()
    for tenant in ("a", "b", "c"):
        taught(lengths, 1_000.0, 10 * SAMPLES_MIN, tenant=tenant)
    assert lengths.expect("t", "m", CHAT, None) == pytest.approx(1_000.0)  # the model's
    taught(lengths, 50.0, SAMPLES_MIN - 1)
    assert lengths.expect("t", "m", CHAT, None) > 300.0
    taught(lengths, 50.0, 1)
    assert lengths.expect("t", "m", CHAT, None) == pytest.approx(50.0)
    assert lengths.expect("t", "m", "/v1/completions", None) == pytest.approx(50.0)  # the tenant's
    assert lengths.expect("t", "another", CHAT, None) == PRIOR_TOKENS


def test_limits_of_like_size_are_one_class() -> None:
    lengths = OutputLength()
    taught(lengths, 40.0, SAMPLES_MIN, max_tokens=600)
    taught(lengths, 4_000.0, 10 * SAMPLES_MIN, max_tokens=8_000)
    assert lengths.expect("t", "m", CHAT, 1_000) == pytest.approx(40.0)
    assert lengths.expect("t", "m", CHAT, 30) <= 30.0


@pytest.mark.parametrize("factor", [1 / 3, 3.0])
def test_it_converges_within_a_hundred_answers(factor: float) -> None:
    lengths, rng = OutputLength(), Random(1)
    for _ in range(100):
        lengths.observe("t", "m", CHAT, None, factor * PRIOR_TOKENS * rng.lognormvariate(0.0, 0.5))
    truth = factor * PRIOR_TOKENS * 1.133  # the mean of that law: e to the half of its variance
    assert lengths.expect("t", "m", CHAT, None) == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize(
    ("told", "most"),
    [
        ([100.0] * 200 + [1e9], 120.0),
        ([2.0**39] + [100.0] * (SAMPLES_MIN - 1), 200.0),  # among the first ones
        (([2.0**39] + [100.0] * 7) * 250, 300.0),  # a backend of eight always tells nonsense
    ],
)
def test_absurd_answers_move_it_little(told: list[float], most: float) -> None:
    lengths = OutputLength()
    for tokens in told:
        lengths.observe("t", "m", CHAT, None, tokens)
    assert lengths.expect("t", "m", CHAT, None) < most


def test_classes_are_bounded() -> None:
    lengths = OutputLength()
    for number in range(CLASSES_MAX):
        lengths.observe(f"t{number}", "m", CHAT, None, 10.0)
        assert len(lengths._classes) <= CLASSES_MAX
    taught(lengths, 10.0, SAMPLES_MIN, tenant="last")
    assert lengths.expect("last", "m", CHAT, None) == pytest.approx(10.0)


def test_names_are_kept_short() -> None:
    """A client's model may be as long as a body."""
    lengths = OutputLength()
    lengths.observe("t", "m" * 10_000_000, CHAT, None, 10.0)
    assert max(len(str(each)) for each in lengths._classes.of("t")) < 300


def test_a_model_is_not_forgotten_for_the_many_tenants_that_use_it() -> None:
    lengths = OutputLength()
    for number in range(2 * CLASSES_MAX):
        lengths.observe(f"t{number}", "m", "/", None, 1_000.0)
        if number >= SAMPLES_MIN:
            assert lengths.expect("new", "m", "/", None) == pytest.approx(1_000.0)


def test_an_answer_is_no_longer_than_its_client_allowed() -> None:
    lengths = OutputLength()
    taught(lengths, 2.0**39, SAMPLES_MIN, max_tokens=64)
    assert lengths.expect("t", "m", "/other", None) <= 64.0


def test_one_tenant_does_not_decide_what_is_usual_with_a_model() -> None:
    lengths = OutputLength()
    taught(lengths, 100.0, SAMPLES_MIN, tenant="a")
    taught(lengths, 10_000.0, 1_000, tenant="attacker")
    taught(lengths, 100.0, SAMPLES_MIN, tenant="b")
    taught(lengths, 100.0, SAMPLES_MIN, tenant="c")
    assert lengths.expect("a", "m", CHAT, None) == pytest.approx(100.0)
    assert lengths.expect("new", "m", CHAT, None) == pytest.approx(100.0)


@pytest.mark.parametrize("tokens", [1.0, 30_000.0])
@pytest.mark.parametrize("others", [0, 1, 2, 8])
def test_one_that_came_first_does_not_either(tokens: float, others: int) -> None:
    lengths = OutputLength()
    taught(lengths, tokens, 1_000, tenant="attacker")
    for number in range(others):
        taught(lengths, 100.0, 3, tenant=f"t{number}")
    least = 0.9 * min(100.0, PRIOR_TOKENS)
    assert least < lengths.expect("new", "m", CHAT, None) <= PRIOR_TOKENS


def test_a_tenant_of_many_classes_displaces_its_own() -> None:
    lengths = OutputLength()
    taught(lengths, 100.0, SAMPLES_MIN, tenant="victim")
    for number in range(2 * CLASSES_MAX):
        lengths.observe("attacker", f"m{number}", CHAT, None, 7.0)
    assert lengths.expect("victim", "m", CHAT, None) == pytest.approx(100.0)
