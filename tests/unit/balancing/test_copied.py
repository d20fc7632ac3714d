"""Large copies are made a piece a step, and come out whole."""

import pytest

from penstock.balancing.outline import COUNTED_BYTES, copied, finished
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.tokens import TokenEstimator

LARGE = bytes(range(256)) * (3 * COUNTED_BYTES // 256)


@pytest.mark.parametrize("size_bytes", [0, 1, COUNTED_BYTES, COUNTED_BYTES + 1, len(LARGE)])
def test_the_copy_is_the_same(size_bytes: int) -> None:
    assert finished(copied(memoryview(LARGE)[:size_bytes])) == LARGE[:size_bytes]


def test_a_step_copies_one_piece() -> None:
    assert sum(1 for _ in copied(memoryview(LARGE))) == len(LARGE) // COUNTED_BYTES


def test_long_options_are_not_copied_into_those_that_take_their_place() -> None:
    """What they hold beside what a backend knows is left out."""
    junk = b",".join([b'"k%d":1' % number for number in range(50_000)])
    body = (
        b'{"stream":true,"prompt":"x","stream_options":{%b,"continuous_usage_stats":true,'
        b'"include_usage":false}}'
    ) % junk
    ask = Reader(TokenEstimator()).read("/v1/completions", [], body, GENERATION)
    assert ask.usage_options == b'{"include_usage":true,"continuous_usage_stats":false}'
