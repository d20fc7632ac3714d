"""A coded body is decoded by pieces, and what is wrong with it is found."""

import gzip
from random import Random

import pytest

from penstock.balancing.poison import mark_of
from penstock.proxy.wire.content_coding import (
    BOM,
    CODINGS,
    PIECE_BYTES,
    RATIO_MAX,
    SMALL_BYTES,
    Decoder,
    RatioExceeded,
    Undecodable,
)
from tests.coded import coded

PATH = b"/v1/chat/completions"
NOISE = Random(1).randbytes(3_000_000)
WORDS = b'{"prompt":"' + b"all work and no play " * 150_000 + NOISE.hex().encode() + b'"}'


def finish(decoder: Decoder) -> list[int]:
    """Decode all of it. Returns how large the pieces were."""
    sizes = []
    while not decoder.complete:
        sizes.append(decoder.more())
    return sizes


def decoded(coding: bytes, body: bytes) -> bytes:
    decoder = Decoder(coding, PATH, body)
    sizes = finish(decoder)
    whole, mark = decoder.whole()
    assert max(sizes) <= PIECE_BYTES
    assert sum(sizes) == len(whole) == decoder.size_bytes
    assert mark == mark_of(PATH, whole)
    return whole


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("body", [b"{}", b"", NOISE, WORDS, b" " * PIECE_BYTES])
def test_a_body_is_as_it_was(coding: bytes, body: bytes) -> None:
    assert decoded(coding, coded(coding, body)) == body
    assert decoded(coding, coded(coding, BOM + body)) == body


@pytest.mark.parametrize("body", [b"{}", WORDS])
def test_a_byte_order_mark_is_taken_off(body: bytes) -> None:
    assert decoded(b"", BOM + body) == body


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("body", [b"{}", NOISE])
def test_what_is_not_one_whole_piece_is_refused(coding: bytes, body: bytes) -> None:
    whole = coded(coding, body)
    for wrong in (b"x", whole[:-1], whole[: len(whole) // 2], whole + b"x", whole + whole, body):
        with pytest.raises(Undecodable, match=coding.decode()):
            decoded(coding, wrong)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_that_grows_out_of_all_proportion_is_refused(coding: bytes) -> None:
    body = b"a" * 20 * SMALL_BYTES
    bomb = coded(coding, body)
    assert len(bomb) * RATIO_MAX < len(body)
    decoder = Decoder(coding, PATH, bomb)
    with pytest.raises(RatioExceeded):
        finish(decoder)
    assert decoder.size_bytes <= max(SMALL_BYTES, RATIO_MAX * len(bomb)) + PIECE_BYTES


@pytest.mark.skipif(b"zstd" not in CODINGS, reason="needs zstd")
def test_a_frame_that_looks_back_too_far_is_refused() -> None:
    """A decoder would hold as much as a few bytes of a head ask for."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(31 - 10) << 3]) + b"\x01\x00\x00"
    with pytest.raises(Undecodable):
        decoded(b"zstd", frame)


def test_gzip_is_taken_everywhere() -> None:
    assert b"gzip" in CODINGS
    assert decoded(b"gzip", gzip.compress(b"x")) == b"x"
