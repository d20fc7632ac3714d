"""Large copies are made a piece a step, and come out whole."""

import pytest

from penstock.balancing.outline import COUNTED_BYTES, finished, joined
from penstock.balancing.peek import peek
from penstock.balancing.tokens import TokenEstimator

LARGE = bytes(range(256)) * (3 * COUNTED_BYTES // 256)


@pytest.mark.parametrize(
    "parts",
    [[], [b""], [b"a", b"", b"b"], [LARGE], [LARGE, b"x", LARGE], [LARGE[:100_000]] * 40],
    ids=len,
)
def test_it_is_what_a_join_makes(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    assert finished(joined(parts)) == whole
    assert finished(joined([memoryview(part) for part in parts])) == whole


def test_a_step_copies_two_pieces_at_most() -> None:
    parts = [LARGE, LARGE, *[b"small"] * 1_000]
    steps = sum(1 for _ in joined(parts))
    assert steps >= 2 * len(LARGE) // (2 * COUNTED_BYTES)


def test_one_value_is_not_copied() -> None:
    assert finished(joined([LARGE])) is LARGE


def test_long_options_are_not_copied_into_those_that_take_their_place() -> None:
    """What they hold beside what a backend knows is left out."""
    junk = b",".join([b'"k%d":1' % number for number in range(50_000)])
    body = (
        b'{"stream":true,"prompt":"x","stream_options":{%b,"continuous_usage_stats":true,'
        b'"include_usage":false}}'
    ) % junk
    ask = peek("/v1/completions", [], body, TokenEstimator())
    assert ask.usage_options == b'{"include_usage":true,"continuous_usage_stats":false}'
