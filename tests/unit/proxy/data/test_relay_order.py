"""Bytes go on untouched and in their order, whatever they are and wherever reads end."""

from random import Random

from tests.unit.proxy.data.relayed import DONE, TOKENS, Request

# Of these lines, ends and events are made; NUL is what no text has.
ALPHABET = [b"\n", b"\r", b"\0", b"\n\n", b"\r\n\r\n", b"data: x", b": c", b":", *TOKENS]


def test_a_nul_at_the_end_of_a_read_within_an_event() -> None:
    pieces = [TOKENS[0], b"data: a", b"b\0", b"c\0", b"d\n\n", DONE]
    request = Request().feed(*pieces)
    assert request.body == b"".join(pieces)


def test_any_bytes_at_any_split() -> None:
    for seed in range(60):
        rng = Random(seed)
        request = Request().feed(TOKENS[0])
        sent = TOKENS[0]
        for _ in range(rng.randrange(1, 12)):
            piece = b"".join(rng.choices(ALPHABET, k=rng.randrange(1, 6)))
            cut = rng.randrange(len(piece) + 1)
            request.feed(piece[:cut], piece[cut:])
            sent += piece
            assert sent.startswith(request.body), seed
        request.feed(b"\n\n\n\n" + DONE)
        assert request.body == sent + b"\n\n\n\n" + DONE, seed
