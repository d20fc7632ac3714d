"""Where TLS records begin: what is taken of the waiting bytes at once, and how it counts."""

from itertools import accumulate
from random import Random

import pytest

from penstock.proxy.wire.records import (
    HEAD_BYTES,
    RECORDS_MAX,
    SHORTEST_BYTES,
    Records,
)


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + b"\xff" * size


@pytest.mark.parametrize("strange", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_slices_are_all_that_came_in_order(seed: int, strange: bool) -> None:
    """Those of a stranger end with a record."""
    rng = Random(seed)
    sizes = [rng.choice((19, 20, 24, 300, 16_401)) for _ in range(300)]
    sent = b"".join(record(size) for size in sizes)
    ends = list(accumulate(size + HEAD_BYTES for size in sizes))
    records, slices, ended, at = Records(strange=strange), [], 0, 0
    records.shaken()
    while at < len(sent):
        size = rng.choice((1, 2, 4, 6, 700, 40_000))
        records.add(sent[at : at + size])
        at += size
        while records.left:
            fits = records.fit()
            slices.append(records.take())
            assert slices[-1]
            assert records.count <= RECORDS_MAX
            ended += records.count
            assert not (fits and records.left)
            assert fits or strange or records.left
            taken = sum(len(piece) for piece in slices)
            assert ended == sum(end <= taken for end in ends)
            assert not strange or taken in ends
    assert b"".join(slices) == sent
    assert (ended, len(records)) == (300, 0)


def test_what_is_no_record_counts_by_its_size() -> None:
    """OpenSSL takes a hello of SSL 2, behind which our count would be the sender's to choose."""
    records = Records()
    records.add(b"\x80\x2e\x01\x03\x03" + b"\x17\x03\x03\x40\x00" * 1_000)
    assert not records.is_one(record(9))
    while records.left:
        assert len(records.take()) <= RECORDS_MAX * SHORTEST_BYTES


def test_one_whole_record_is_told_from_all_else() -> None:
    records = Records()
    assert records.is_one(record(30))
    assert not records.is_one(record(30) + record(30))
    assert not records.is_one(record(30)[:-1])
    records.add(record(30)[:7])
    records.take()
    assert not records.is_one(record(30))
    records.add(record(30)[7:] + b"\x17")
    records.take()
    assert not records.is_one(record(30))


def test_of_a_stranger_only_parts_that_openssl_refuses_are_taken() -> None:
    part = record(16_000)[:9_000]
    for data, taken in (
        (part, 0),
        (record(30) + part, 35),
        (b"\x16" + part[1:], 0),
        (record(18_500)[:9_000], 9_000),  # longer than any record
        (b"GET / HTTP/1.1\r\n", 16),
    ):
        records = Records(strange=True)
        records.shaken()
        records.add(data)
        assert (records.left, records.fit()) == (taken > 0, True)
        assert len(records.take()) == taken
        assert len(records) == len(data) - taken
        records.trust()
        assert records.left is bool(len(records))
        assert records.take() == data[taken:]


def test_of_a_strangers_handshake_its_own_records_are_taken_in_part() -> None:
    """Their length is limited by what they declare."""
    records = Records(strange=True)
    records.add(b"\x16" + record(16_000)[1:500])
    assert len(records.take()) == 500
    assert records.hello_bytes == 16_005
    records = Records(strange=True)
    records.add(record(16_000)[:500])
    assert not records.left


@pytest.mark.parametrize("cut_bytes", [1, 7, 10_000])
def test_of_a_handshake_with_certificates_each_record_counts(cut_bytes: int) -> None:
    """TLS 1.3 encrypts them. What follows the handshake does not count."""
    sizes = (500, 300, 2_000, 60)
    sent = b"".join(record(size) for size in sizes)
    records, counted, taken = Records(strange=True, single=True), 0, b""
    for at in range(0, len(sent), cut_bytes):
        records.add(sent[at : at + cut_bytes])
        while records.left:
            records.fit()
            counted += records.hello_bytes
            taken += records.take()
            assert records.count <= 1
    assert (taken, counted) == (sent, sum(sizes) + len(sizes) * HEAD_BYTES)
    records.shaken()
    records.add(sent)
    assert records.take() == sent
    assert records.hello_bytes == 0
