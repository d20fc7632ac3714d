"""Large copies are made a piece a step, and come out whole."""

import pytest

from penstock.balancing.outline import COUNTED_BYTES, copied, finished

LARGE = bytes(range(256)) * (3 * COUNTED_BYTES // 256)


@pytest.mark.parametrize("size_bytes", [0, 1, COUNTED_BYTES, COUNTED_BYTES + 1, len(LARGE)])
def test_the_copy_is_the_same(size_bytes: int) -> None:
    assert finished(copied(memoryview(LARGE)[:size_bytes])) == LARGE[:size_bytes]


def test_a_step_copies_one_piece() -> None:
    assert sum(1 for _ in copied(memoryview(LARGE))) == len(LARGE) // COUNTED_BYTES
