"""Cuts a prompt's text into blocks. The hash of a block covers the block and all before it.

Two prompts with the same beginning have the same first blocks, whoever sends them. That is what a
prefix cache can share. The text is the prompt's JSON in the order in which chat templates use it
(tools, system, messages), without the blanks that some clients put between values. vLLM's own
blocks consist of tokens and are smaller (16 tokens). Where two prompts part inside a block, nothing
of it counts as shared: on average half a block, some 80 tokens.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import xxhash

from penstock.balancing import native
from penstock.balancing.field_values import UNREADABLE
from penstock.balancing.outline import COUNTED_BYTES, LARGE_BYTES, Steps, without_blanks

# Some 160 tokens. vLLM's approximate routers use 64, so they have four times the number and cost.
BLOCK_BYTES: Final = 512
# 1 MiB of text: more than any context.
BLOCKS_MAX: Final = 2_048
TEXT_BYTES_MAX: Final = BLOCK_BYTES * BLOCKS_MAX
# How much of a large part is read, so that enough is left after its blanks are removed.
LOOKED_BYTES_MAX: Final = 2 * TEXT_BYTES_MAX
_BLANKS: Final = (b'": ', b'", "', b"{ ", b"[ ", b"\n")


class Blocks:
    """A prompt's blocks, and the tokens of each block before and after the first inline data."""

    __slots__ = ("hashes", "media_tokens", "text", "tokens")

    def __init__(
        self,
        hashes: tuple[int, ...],
        tokens: float,
        text: int = BLOCKS_MAX,
        media_tokens: float = 0.0,
    ) -> None:
        """`text`: how many blocks come before the first inline data."""
        self.hashes = hashes
        self.tokens = tokens
        self.text = text
        self.media_tokens = media_tokens


def compact(part: bytes) -> bytes:
    """A JSON value without blanks between its values, as most clients write it."""
    if _has_blanks(part):
        try:
            return msgspec.json.format(part, indent=-1)
        except (*UNREADABLE, RecursionError):
            pass  # the backend will report what is wrong with it
    return part


def _has_blanks(part: bytes | memoryview) -> bool:
    begin = bytes(part[:BLOCK_BYTES])
    return any(begin.find(blank) >= 0 for blank in _BLANKS)  # `in` takes ten times longer


def compacted(part: bytes) -> Steps[bytes]:
    """`compact` for a part of any size. Returns no more of it than is compared."""
    if len(part) <= LARGE_BYTES:
        return compact(part)
    part = part[:LOOKED_BYTES_MAX]
    if _has_blanks(part):
        part = yield from without_blanks(part)
    return part


def prompt_blocks(root: bytes, text: bytes) -> tuple[int, ...]:
    """The hashes of the text's full blocks. `root` must be equal before any text is shared.

    220 KB take 0.05 ms.
    """
    blocks = []
    chained = xxhash.xxh3_64_intdigest(root)
    for end in range(BLOCK_BYTES, min(len(text), BLOCKS_MAX * BLOCK_BYTES) + 1, BLOCK_BYTES):
        chained = xxhash.xxh3_64_intdigest(text[end - BLOCK_BYTES : end], chained)
        blocks.append(chained)
    return tuple(blocks)


def text_blocks(root: bytes, parts: Sequence[bytes | memoryview], tokens: int) -> Blocks:
    """The blocks of a prompt without media. `parts` are its parts as JSON."""
    if native.AVAILABLE:
        hasher = native.BlockHashes(xxhash.xxh3_64_intdigest(root))
        for part in parts:
            hasher.add(part, _has_blanks(part))
        return _of_equal_density(hasher.hashes(), tokens, hasher.size_bytes())
    text = b"".join([compact(bytes(part)) for part in parts])
    return _of_equal_density(prompt_blocks(root, text), tokens, len(text))


def large_text_blocks(
    root: bytes, parts: Sequence[bytes | memoryview], tokens: int
) -> Steps[Blocks]:
    """The blocks of a prompt of any size, without media."""
    if native.AVAILABLE:
        hashes = yield from _native_hashes(root, parts)
    else:
        text = b""
        for part in parts:
            if len(text) < TEXT_BYTES_MAX:
                text += yield from compacted(bytes(part))
        hashes = prompt_blocks(root, text)
    return _of_equal_density(hashes, tokens, sum(map(len, parts)))


def _native_hashes(root: bytes, parts: Sequence[bytes | memoryview]) -> Steps[tuple[int, ...]]:
    hasher = native.BlockHashes(xxhash.xxh3_64_intdigest(root))
    for part in parts:
        squeezed, view = _has_blanks(part), memoryview(part)[:LOOKED_BYTES_MAX]
        for at in range(0, len(view), COUNTED_BYTES):
            if not hasher.add(view[at : at + COUNTED_BYTES], squeezed):
                return hasher.hashes()
            yield
    return hasher.hashes()


def _of_equal_density(hashes: tuple[int, ...], tokens: int, size_bytes: int) -> Blocks:
    """`size_bytes`: of the whole text. The blocks may be of its beginning."""
    return Blocks(hashes, tokens * BLOCK_BYTES / max(size_bytes, BLOCK_BYTES))
