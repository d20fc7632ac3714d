"""The words of the simulated model: a pure function of all the text before them.

Every token is chosen by a hash over the prompt and everything generated so far, as bytes. So
the answer to a prompt is the same on every server, a continuation of a partial answer equals
the unbroken one, and any byte lost, repeated, or taken from another stream shows.

A token is at most seven bytes and its id is those bytes behind a leading 1, as an integer: ids
and text convert both ways, and token-id prompts continue exactly like the same text.
"""

from hashlib import blake2b
from json import dumps
from struct import unpack
from typing import Final, NamedTuple

TOKEN_BYTES: Final = 4
"""Bytes of prompt text that count as one token."""


class Token(NamedTuple):
    """One entry of the vocabulary, with the forms that the wire needs."""

    token_id: int
    raw: bytes
    json: bytes
    """The text inside a JSON string, without the quotes."""


def token_id(piece: bytes) -> int:
    return int.from_bytes(b"\x01" + piece, "big")


def piece_of(number: int) -> bytes:
    """The bytes behind a token id; an id of no known piece reads as its decimal digits."""
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return raw[1:] if len(raw) > 1 and raw[0] == 1 else b" %d" % number


def _vocabulary() -> tuple[Token, ...]:
    """1,024 tokens of about four characters: syllables, some accented, and a few traps."""
    words = [
        f" {onset}{vowel}{coda}"
        for onset in "bcdfghklmnprstvw"
        for vowel in "aeio"
        for coda in "bdfgklmnprstvxyz"
    ]
    accents = str.maketrans("aeio", "áéíö")
    words[::32] = [word.translate(accents) for word in words[::32]]
    # What careless stream parsers trip over: the SSE marker, quotes, line ends, wide characters.
    words[7::128] = [" data: ", ' "', "\n\n", "\\n", " 水", " 🚰", "[DONE]", "\r\n"]
    return tuple(
        Token(token_id(raw), raw, dumps(word, ensure_ascii=False)[1:-1].encode())
        for word, raw in ((word, word.encode()) for word in words)
    )


VOCABULARY: Final = _vocabulary()


class Voice:
    """Speaks the tokens that follow a prompt, one at a time."""

    __slots__ = ("_heard",)

    def __init__(self, prompt: bytes, choice: int = 0) -> None:
        self._heard = blake2b(prompt, digest_size=2)
        if choice:  # further choices of one prompt must differ from the first
            self._heard.update(b"\x00%d" % choice)

    def speak(self) -> Token:
        low, high = self._heard.digest()
        token = VOCABULARY[(high << 8 | low) & 1023]
        self._heard.update(token.raw)
        return token


def expected(prompt: str | bytes, tokens: int, choice: int = 0) -> str:
    """The text a client must receive for a prompt: `tokens` tokens of it."""
    voice = Voice(prompt.encode() if isinstance(prompt, str) else prompt, choice)
    return b"".join(voice.speak().raw for _ in range(tokens)).decode()


def token_count(text: bytes) -> int:
    return -(-len(text) // TOKEN_BYTES)


def tokenize(text: bytes) -> list[int]:
    """Cut text into pieces of four bytes: `token_count` ids, which detokenize to it."""
    whole = len(text) // TOKEN_BYTES * TOKEN_BYTES
    mark = token_id(bytes(TOKEN_BYTES))  # what the leading 1 adds; 0.1 us a token, not 0.2
    ids = [mark | number for number in unpack(f">{whole // TOKEN_BYTES}I", text[:whole])]
    return [*ids, token_id(text[whole:])] if whole < len(text) else ids


def detokenize(token_ids: list[int]) -> bytes:
    return b"".join(map(piece_of, token_ids))
