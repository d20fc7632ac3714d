"""The mark stays on its backend, whatever becomes of the rows."""

import pytest

from penstock.proxy.commands.top.view import Cursor

pytestmark = pytest.mark.once


def test_the_mark_goes_with_its_entry() -> None:
    cursor = Cursor(str)
    assert cursor.place(["a", "b", "c"], 3) == 0
    cursor.move(["a", "b", "c"], 1)
    assert cursor.key == "b"
    assert cursor.place(["b", "c", "a"], 3) == 0
    assert cursor.place(["c", "a", "b"], 3) == 2


def test_if_the_entry_is_gone_the_one_in_its_place_is_marked() -> None:
    cursor = Cursor(str)
    cursor.place(["a", "b", "c"], 3)
    cursor.move(["a", "b", "c"], 2)
    assert cursor.place(["a", "b"], 3) == 1
    assert cursor.key == "b"
    assert cursor.place([], 3) == 0
    assert cursor.key is None


def test_the_marked_row_is_always_seen() -> None:
    cursor, keys = Cursor(str), [*range(100)]
    cursor.place(keys, 10)
    for by, top in ((9, 0), (1, 1), (50, 51), (-5, 51), (-1_000, 0), (1_000, 90)):
        cursor.move(keys, by)
        at = cursor.place(keys, 10)
        assert (cursor.top, cursor.top <= at < cursor.top + 10) == (top, True)
