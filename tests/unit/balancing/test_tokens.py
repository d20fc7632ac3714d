"""The estimate of prompt tokens: what is measured of a text, and what is learnt from usage."""

from random import Random

import orjson
import pytest

from penstock.balancing import tokens as reader
from penstock.balancing.tokens import (
    CALIBRATIONS_MAX,
    MEDIA_PART_TOKENS,
    MODELS_MAX,
    NOTHING,
    OWN_MIN,
    SAMPLE_BYTES,
    Measure,
    TokenEstimator,
)

PROSE = b"The river runs through the valley and the mill stands by it. "
WIDE = "河流穿过山谷，磨坊就在旁边。"

SECRET = 7


def measure(text: bytes) -> Measure:
    return reader.measure([text], SECRET)


def test_a_long_text_is_measured_by_a_sample() -> None:
    short, long = PROSE * 60, PROSE * 60 * 50
    assert len(short) < SAMPLE_BYTES < len(long)
    assert measure(long)[0] == pytest.approx(50 * measure(short)[0], rel=0.03)
    # Its slices are taken from all of it: half prose and half digits is neither.
    mixed = PROSE * 1_000 + b"0123456789" * 6_100
    halves = measure(PROSE * 1_000)[0] + measure(b"0123456789" * 6_100)[0]
    assert measure(mixed)[0] == pytest.approx(halves, rel=0.05)


def test_blanks_at_known_places_do_not_hide_a_prompt() -> None:
    """At the ends and at every third, or of each eighth the beginning, the middle or the end."""
    text = PROSE * 6_600
    size, blank = len(text), 1_200
    step = (size - 1_024) // 3
    for places in (
        [step * each for each in range(4)],
        [size // 8 * each for each in range(8)],
        [size // 8 * each + size // 16 - blank // 2 for each in range(8)],
        [size // 8 * (each + 1) - blank for each in range(8)],
    ):
        hidden = bytearray(text)
        for at in places:
            hidden[at : at + blank] = b" " * len(hidden[at : at + blank])
        assert measure(bytes(hidden))[0] > 0.5 * measure(text)[0]


@pytest.mark.parametrize("size", [0, 1, SAMPLE_BYTES - 1, SAMPLE_BYTES, SAMPLE_BYTES + 1])
def test_sizes_around_the_sample(size: int) -> None:
    pieces, wide = measure(b"a " * (size // 2) + b"a" * (size % 2))
    assert pieces == pytest.approx(0.78 * (size + 1) // 2, rel=0.02, abs=1)
    assert wide == 0


def test_wide_characters_are_the_same_escaped() -> None:
    raw, escaped = WIDE.encode(), WIDE.encode("ascii", "backslashreplace")
    assert measure(raw) == measure(escaped) == (0.0, len(WIDE))


def test_nothing_known_is_near_common_vocabularies() -> None:
    """One token for four to five letters of prose, one for a Chinese character."""
    estimator = TokenEstimator()
    assert estimator.estimate("m", measure(PROSE * 20)) == pytest.approx(20 * 13, rel=0.15)
    assert estimator.estimate("m", measure(WIDE.encode() * 20)) == pytest.approx(252, rel=0.01)
    assert estimator.estimate("m", NOTHING) == 1


def test_two_costs_are_learnt_at_once_for_each_model() -> None:
    estimator, rng = TokenEstimator(), Random(1)
    for _ in range(50):
        pieces, wide = rng.uniform(10, 5_000), rng.choice((0.0, rng.uniform(10, 5_000)))
        estimator.observe("m", (pieces, wide), round(1.4 * pieces + 2.9 * wide))
    assert estimator.estimate("m", (1_000, 0)) == pytest.approx(1_400, rel=0.05)
    assert estimator.estimate("m", (0, 1_000)) == pytest.approx(2_900, rel=0.1)
    assert estimator.estimate("other", (1_000, 0)) == 1_000


def taught(
    estimator: TokenEstimator,
    size: float,
    tokens: int,
    times: int,
    tenant: str = "",
    media_parts: int = 0,
) -> None:
    """Teach the estimator texts of one size and their token count."""
    for _ in range(times):
        estimator.observe("m", (size, 0), tokens, media_parts, tenant=tenant)


def told(estimator: TokenEstimator, size: float, tenant: str = "", media_parts: int = 0) -> int:
    return estimator.estimate("m", (size, 0), media_parts, tenant=tenant)


def test_a_changed_tokenizer_is_followed() -> None:
    estimator = TokenEstimator()
    for tokens in (2_500, 5_000):
        taught(estimator, 4_000, tokens, 1_000)
    assert told(estimator, 4_000) == pytest.approx(5_000, rel=0.02)


@pytest.mark.parametrize("tokens", [1, 10**9])
def test_one_absurd_report_does_not_spoil_the_estimate(tokens: int) -> None:
    estimator = TokenEstimator()
    for counted, times in ((4_000, 80), (tokens, 1), (4_000, 20)):
        taught(estimator, 4_000, counted, times)
    assert 0.5 < told(estimator, 4_000) / 4_000 < 1.5


def test_a_few_reports_that_are_far_too_low_do_not_blind_it() -> None:
    """A backend that cuts prompts on request counts what was left of them."""
    estimator = TokenEstimator()
    measured = measure(PROSE * 50)
    for number in range(2_000):
        estimator.observe("m", measured, 1 if number % 20 == 0 else 700)
    assert 630 < estimator.estimate("m", measured) < 770


def test_what_was_never_seen_keeps_its_prior() -> None:
    estimator = TokenEstimator()
    taught(estimator, 100, 140, 10_000)
    assert estimator.estimate("m", (0, 1_000)) == 900


def test_an_exact_count_gets_what_the_template_adds_a_turn() -> None:
    estimator, rng = TokenEstimator(), Random(1)
    measured = measure(PROSE)
    assert estimator.estimate("m", measured, counted=(1_000, 1)) == 1_005
    for _ in range(100):
        tokens, turns = rng.randint(10, 5_000), rng.randint(1, 20)
        estimator.observe("m", measured, tokens + 12 * turns + 3, counted=(tokens, turns))
    for tokens, turns in ((20, 1), (3_000, 1), (400, 20)):
        estimate = estimator.estimate("m", measured, counted=(tokens, turns))
        assert estimate == pytest.approx(tokens + 12 * turns + 3, rel=0.1)


def test_media_teaches_what_a_part_costs_and_nothing_else() -> None:
    estimator = TokenEstimator()
    measured = measure(orjson.dumps("what is in this image?" * 20))
    before = estimator.estimate("m", measured)
    assert estimator.estimate("m", measured, 2) == before + 2 * MEDIA_PART_TOKENS
    for _ in range(30):
        estimator.observe("m", measured, before + 2 * 250, 2)
    assert estimator.estimate("m", measured) == before
    assert estimator.estimate("m", measured, 1) == pytest.approx(before + 250, rel=0.05)


def test_models_that_clients_invent_take_no_more_memory() -> None:
    estimator = TokenEstimator()
    for number in range(2 * CALIBRATIONS_MAX):
        for _ in range(OWN_MIN):
            estimator.observe(f"m{number}", (1_000, 0), 3_000)
    known = [
        number
        for number in range(2 * CALIBRATIONS_MAX)
        if estimator.estimate(f"m{number}", (1_000, 0)) > 1_000
    ]
    assert known == list(range(CALIBRATIONS_MAX, 2 * CALIBRATIONS_MAX))
    assert len(estimator._models) == MODELS_MAX
    assert estimator.estimate("new", (1_000, 0)) == 1_000


def test_a_backend_that_counts_one_token_for_every_prompt_teaches_little() -> None:
    """It has a quarter of the answers; the others count 1.1 tokens for each that is expected."""
    estimator = TokenEstimator()
    for number in range(400):
        size = (20, 200, 2_000, 20_000)[number // 4 % 4]
        told = 1 if number % 4 == 0 else round(size * 1.1)
        estimator.observe("m", (size, 0), told, tenant=f"t{number % 3}")
    for tenant in ("t0", "t1", "t2", "new"):
        assert estimator.estimate("m", (2_000, 0), tenant=tenant) > 0.7 * 2_200


def test_odd_texts_of_one_tenant_teach_others_little() -> None:
    """A megabyte of one sign is a fortieth of what it looks like."""
    estimator = TokenEstimator()
    taught(estimator, 1_000, 1_000, 50, "victim")
    taught(estimator, 40_000, 1_000, 1_000, "attacker")
    taught(estimator, 1_000, 1_000, 40, "another")
    assert told(estimator, 1_000, "victim") == pytest.approx(1_000, rel=0.01)
    assert told(estimator, 1_000, "new") > 400
    assert told(estimator, 40_000, "attacker") < 1_500


def test_odd_texts_of_many_tenants_teach_newcomers_nothing() -> None:
    """A run of one sign is a fortieth of what other text of its length is."""
    estimator = TokenEstimator()
    text = estimator.measure([b"the model has words " * 200])
    before = estimator.estimate("m", text, tenant="new")
    dashes = b"-" * 100_000
    for tenant in range(20):
        for _ in range(30):
            estimator.observe("m", estimator.measure([dashes]), 2_000, tenant=f"t{tenant}")
    assert estimator.estimate("m", text, tenant="new") == before
    assert estimator.estimate("m", estimator.measure([dashes]), tenant="t0") < 4_000


@pytest.mark.parametrize(("cost", "most"), [(3.5, 1.5), (5.0, 1.0)])
def test_odd_texts_of_a_few_tenants_teach_newcomers_little(cost: float, most: float) -> None:
    """Texts that have several times as many tokens as they look: far more teach nothing."""
    estimator = TokenEstimator()
    for tenant in range(50):
        taught(estimator, 1_000, 1_000, OWN_MIN, f"t{tenant}")
    for tenant in range(10):
        taught(estimator, 1_000, round(1_000 * cost), 100, f"odd{tenant}")
    assert 1_000 <= told(estimator, 1_000, "new") <= 1_000 * most
    assert told(estimator, 1_000, "t1") == 1_000


@pytest.mark.parametrize("part_tokens", [85, 4_000, 16_000])
def test_what_an_image_costs_is_learnt_for_newcomers_of_short_texts(part_tokens: int) -> None:
    estimator = TokenEstimator()
    for tenant in range(100):
        taught(estimator, 20, 20 + part_tokens, 1, f"t{tenant}", media_parts=1)
    expected = pytest.approx(20 + part_tokens, rel=0.1)
    assert told(estimator, 20, "new", media_parts=1) == expected


def test_a_tenant_of_many_models_displaces_its_own() -> None:
    estimator = TokenEstimator()
    taught(estimator, 1_000, 3_000, OWN_MIN, "victim")
    for number in range(2 * CALIBRATIONS_MAX):
        estimator.observe(f"m{number}", (1_000, 0), 10, tenant="attacker")
    assert told(estimator, 1_000, "victim") == pytest.approx(3_000, rel=0.1)


def test_where_a_prompt_is_looked_at_is_a_secret() -> None:
    """Not the interpreter's own, which may be set to be known (PYTHONHASHSEED)."""
    rng = Random(1)
    text = PROSE * 50 + bytes(rng.choice(b"ab 1.") for _ in range(60_000))
    assert len({TokenEstimator(secret).measure([text]) for secret in range(8)}) > 4
    assert TokenEstimator(7).measure([text]) == TokenEstimator(7).measure([text])
