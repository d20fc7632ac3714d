"""What is remembered of usual lines stays small, whatever clients invent."""

from penstock.proxy.wire.header_fields import KEY_BYTES_MAX, Remembered


def test_a_full_table_is_cleared_and_usual_entries_return() -> None:
    known: Remembered[int] = Remembered(100)
    for number in range(1_234):
        known.put(b"invented-%d" % number, number)
        assert 0 < len(known) <= 100
    assert known.get(b"invented-0") is None
    known.put(b"usual", 7)
    assert known.get(b"usual") == 7


def test_long_keys_are_not_remembered() -> None:
    known: Remembered[int] = Remembered(100)
    known.put(b"k" * KEY_BYTES_MAX, 1)
    known.put(b"k" * (KEY_BYTES_MAX + 1), 2)
    assert (len(known), known.get(b"k" * KEY_BYTES_MAX)) == (1, 1)
