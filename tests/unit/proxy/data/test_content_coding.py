"""A coded body is decoded, and what is wrong with it is found."""

import gzip
from random import Random

import pytest

from penstock.proxy.data.decoders import BOM, CODINGS, Undecodable, decode
from tests.coded import coded

NOISE = Random(1).randbytes(3_000_000)
WORDS = b'{"prompt":"' + b"all work and no play " * 150_000 + NOISE.hex().encode() + b'"}'


def decoded(coding: bytes, body: bytes) -> bytes:
    return decode(coding, body, 16_777_216)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("body", [b"{}", b"", NOISE, WORDS])
def test_a_body_is_as_it_was(coding: bytes, body: bytes) -> None:
    assert decoded(coding, coded(coding, body)) == body
    assert decoded(coding, coded(coding, BOM + body)) == body
    assert decode(coding, coded(coding, body), len(body)) == body


@pytest.mark.parametrize("body", [b"{}", WORDS])
def test_a_byte_order_mark_is_taken_off(body: bytes) -> None:
    assert decoded(b"", BOM + body) == body


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("body", [b"{}", NOISE])
def test_what_is_not_one_whole_piece_is_refused(coding: bytes, body: bytes) -> None:
    whole = coded(coding, body)
    for wrong in (b"x", whole[:-1], whole[: len(whole) // 2], whole + b"x", whole + whole, body):
        with pytest.raises(Undecodable):
            decoded(coding, wrong)


@pytest.mark.parametrize("coding", CODINGS)
def test_no_more_is_decoded_than_may_be_taken(coding: bytes) -> None:
    most_bytes = 1_000_000
    found = decode(coding, coded(coding, b"a" * 20_000_000), most_bytes)
    assert most_bytes < len(found) < most_bytes + 10


@pytest.mark.skipif(b"zstd" not in CODINGS, reason="needs zstd")
def test_a_frame_that_looks_back_too_far_is_refused() -> None:
    """A decoder would hold as much as a few bytes of a head ask for."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(31 - 10) << 3]) + b"\x01\x00\x00"
    with pytest.raises(Undecodable):
        decoded(b"zstd", frame)


def test_gzip_is_taken_everywhere() -> None:
    assert b"gzip" in CODINGS
    assert decoded(b"gzip", gzip.compress(b"x")) == b"x"
