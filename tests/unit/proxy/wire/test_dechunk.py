"""The chunked coding: canonical bodies at any split, everything else refused."""

import pytest

from penstock.proxy.wire.dechunk import EXTRA_BYTES_MAX, Dechunker, MalformedChunks

BODY = b"5\r\nhello\r\n10;ext=1\r\n0123456789abcdef\r\n0\r\nTrailer: dropped\r\n\r\n"
PLAIN = b"hello0123456789abcdef"


def test_every_split_gives_the_same_bytes() -> None:
    bytewise = Dechunker()
    assert b"".join(bytewise.feed(BODY[i : i + 1]) for i in range(len(BODY))) == PLAIN
    assert bytewise.complete
    for cut in range(len(BODY) + 1):
        dechunker = Dechunker()
        assert dechunker.feed(BODY[:cut]) + dechunker.feed(BODY[cut:]) == PLAIN
        assert dechunker.complete
        assert not dechunker.surplus


@pytest.mark.parametrize(
    "after",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"garbage",
        b"\x00",
    ],
)
def test_bytes_after_the_end_are_surplus_and_no_body(after: bytes) -> None:
    """llhttp has no pause: it would run the callbacks of the next message too."""
    dechunker = Dechunker()
    assert dechunker.feed(BODY + after) == PLAIN
    assert dechunker.complete
    assert dechunker.surplus


@pytest.mark.parametrize(
    "body",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5;a=\nb\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"5_0\r\nhello\r\n0\r\n\r\n",
        b"\r\n5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
    ],
)
def test_malformed_coding_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedChunks):
        Dechunker().feed(body)


def test_extensions_and_trailers_share_one_limit() -> None:
    within = b"5;" + b"x" * (EXTRA_BYTES_MAX - 100) + b"\r\nhello\r\n0\r\n\r\n"
    assert Dechunker().feed(within) == b"hello"
    slow = Dechunker()
    slow.feed(b"5;")
    for _ in range(EXTRA_BYTES_MAX - 10):
        slow.feed(b"x")
    with pytest.raises(MalformedChunks):
        slow.feed(b"x" * 20)
    trailers = b"5\r\nhello\r\n0\r\n" + b"a: b\r\n" * 1_000 + b"\r\n"
    with pytest.raises(MalformedChunks):
        Dechunker().feed(trailers)


def test_many_small_chunks_are_within_the_limit() -> None:
    dechunker = Dechunker()
    assert dechunker.feed(b"1\r\nx\r\n" * 20_000) == b"x" * 20_000


@pytest.mark.parametrize("extra_bytes", [4_000, 5_000, 9_000])
def test_what_extras_are_allowed_does_not_depend_on_how_bytes_are_cut(extra_bytes: int) -> None:
    """Plain reads are taken by C where it is there, and count like all others."""
    plain = [b"1\r\nx\r\n"] * 400
    last = b"1;" + b"e" * extra_bytes + b"\r\nx\r\n0\r\n\r\n"

    def outcome(reads: list[bytes]) -> object:
        dechunker = Dechunker()
        try:
            body = b"".join([dechunker.feed(read) for read in reads])
        except MalformedChunks:
            return MalformedChunks
        return body, dechunker.complete

    whole = outcome([b"".join(plain) + last])
    assert outcome([*plain, last]) == whole
    assert outcome([b"".join(plain[:7]), b"".join(plain[7:]), last]) == whole
