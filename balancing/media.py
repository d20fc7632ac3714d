"""Parts of prompts that are not text: how many there are, what marks them, and their blocks."""

import re
from collections.abc import Sequence
from typing import Final

import xxhash

from penstock.balancing.outline import LARGE_BYTES, SLICE_BYTES, Steps
from penstock.balancing.prefix_cache.blocks import (
    BLOCK_BYTES,
    BLOCKS_MAX,
    LOOKED_BYTES_MAX,
    Blocks,
    compacted,
    prompt_blocks,
)
from penstock.balancing.tokens import (
    BYTES_PER_TOKEN,
    MEDIA_PART_TOKENS,
    Measure,
    TokenEstimator,
)

# A part that is not text, by its type, and inline data, which is not text either. After an escaped
# quote such a type is text about parts.
_MEDIA_PART: Final = re.compile(
    rb'"type"\s*:\s*"(?:image|image_url|input_image|image_embeds|audio_url|input_audio'
    rb'|video|video_url|document|file|input_file)"'
)
_INLINE_MEDIA: Final = re.compile(
    rb'"(?:data"\s{0,16}:\s{0,16}"(?=[A-Za-z0-9+/=\\]{256})|data:[^",]{0,128};base64,)'
)
# More than this pattern matches or looks at. Slices overlap by this much.
_INLINE_BYTES_MAX: Final = 512
# The most inline data that is told apart from a prompt's text. vLLM takes at most a thousand parts.
INLINE_MAX: Final = 1_024
# The most parts of one prompt that count. The name of a part has only a few bytes but would count a
# thousand tokens. More parts than this are frames of a long film, with few tokens each.
MEDIA_PARTS_MAX: Final = 256

# Shorter data counts as text. A mark would make it many times as long.
MARKED_BYTES_MIN: Final = 256
# A mark has 16 digits and is repeated until it is as long as text of an image's tokens.
MARK_REPEATS: Final = round(MEDIA_PART_TOKENS * BYTES_PER_TOKEN / 16)
MARKS_MAX: Final = BLOCKS_MAX * BLOCK_BYTES // (16 * MARK_REPEATS) + 1
# Whisper has 50 positions a second (arXiv 2212.04356): each has 640 bytes of 16 kHz PCM, or 160
# bytes of 64 kbit/s.
MEDIA_BYTES_PER_TOKEN: Final = 320


def has_media(text: bytes) -> bool:
    """Whether a text may hold parts that are not text. Texts above LARGE_BYTES always may."""
    if len(text) <= SLICE_BYTES and text.find(b'"type"') < 0:  # a pattern costs more
        return False
    return len(text) > LARGE_BYTES or _MEDIA_PART.search(text) is not None


def without_media(text: bytes) -> Steps[tuple[int, list[bytes | memoryview]]]:
    """(number of parts that are not text, the JSON without their inline data in pieces)."""
    if not (yield from _may_name_parts(text)):
        return 0, [text]
    inline = yield from _inline_media(text)
    parts = yield from _parts_beside(text, inline)
    if not parts:
        return 0, [text]
    view = memoryview(text)
    kept: list[bytes | memoryview] = []
    at = 0
    for begin, end in inline:
        kept.append(view[at:begin])
        at = end
    kept.append(view[at:])
    return parts, kept


def mark_media(parts: Sequence[bytes]) -> Steps[tuple[int, int, bytes]]:
    """(number of inline data, bytes before the first, the JSON with a mark in place of each).

    A mark repeats the hash of the data, so equal images are equal text. It is as long as text with
    an image's tokens. Beyond the part that is compared there are no marks.
    """
    number, before = 0, -1
    marked = b""
    for part in parts:
        view = memoryview(part)
        kept: list[bytes | memoryview] = []
        at = size = 0
        for begin, end in (yield from _inline_media(part)):
            if size < LOOKED_BYTES_MAX:
                kept.append(view[at:begin][:LOOKED_BYTES_MAX])
                size += begin - at
            if number < MARKS_MAX:
                kept.append(xxhash.xxh3_64_hexdigest(view[begin:end]).encode() * MARK_REPEATS)
                yield
            if not number:
                before = len(marked) + begin
            at = end
            number += 1
        kept.append(view[at:][:LOOKED_BYTES_MAX])
        marked += yield from compacted(b"".join(kept))
    return number, before if number else len(marked), marked


def media_blocks(
    root: bytes,
    parts: Sequence[bytes],
    size_bytes: int,
    model: str | None,
    measured: Measure,
    estimator: TokenEstimator,
    client: str,
) -> Steps[Blocks]:
    """Blocks before the first inline data have the text's density, the others share the rest.

    `size_bytes`, `measured`: of the prompt without its inline data. Media that are not inline have
    no bytes here, so their tokens are in no block.
    """
    inline, before, marked = yield from mark_media(parts)
    text_tokens = estimator.estimate(model, measured, 0, None, client)
    density = text_tokens * BLOCK_BYTES / max(size_bytes, BLOCK_BYTES)
    hashes = prompt_blocks(root, marked)
    first = before // BLOCK_BYTES
    media_parts = min(inline, MEDIA_PARTS_MAX)
    left = estimator.estimate(model, measured, media_parts, None, client) - first * density
    rest = max(len(marked) - first * BLOCK_BYTES, BLOCK_BYTES)
    return Blocks(hashes, density, first, max(0.0, left) * BLOCK_BYTES / rest)


def _inline_media(text: bytes) -> Steps[list[tuple[int, int]]]:
    """Where each inline data begins and ends. Text that only speaks of such data is left out."""
    found: list[tuple[int, int]] = []
    at = past = 0
    while at < len(text) and len(found) < INLINE_MAX:
        until = min(at + SLICE_BYTES, len(text))
        for match in _INLINE_MEDIA.finditer(text, at, until):
            begin = match.end()
            if begin > past and text[match.start() - 1 : match.start()] != b"\\":
                past = text.find(b'"', begin)
                past = past if past >= 0 else len(text)
                if past - begin >= MARKED_BYTES_MIN:
                    found.append((begin, past))
        if until == len(text):
            break
        at = max(until - _INLINE_BYTES_MAX, past)
        yield
    return found[:INLINE_MAX]


def _may_name_parts(text: bytes) -> Steps[bool]:
    """Whether any part that is not text is named, even if only inside inline data."""
    at = 0
    while True:
        until = min(at + SLICE_BYTES, len(text))
        if _MEDIA_PART.search(text, at, until) is not None:
            return True
        if until == len(text):
            return False
        # The name of a part has no comma, and rarely so many blanks.
        comma = text.rfind(b",", at + SLICE_BYTES // 2, until)
        at = comma if comma >= 0 else until - _INLINE_BYTES_MAX
        yield


def _parts_beside(text: bytes, inline: Sequence[tuple[int, int]]) -> Steps[int]:
    count = at = looked = 0
    for begin, end in [*inline, (len(text), len(text))]:
        while at < begin:
            until = begin
            if begin - at > SLICE_BYTES:  # cut at a comma: the name of a part has none
                until = text.rfind(b",", at + 1, at + SLICE_BYTES)
                until = until if until > 0 else at + SLICE_BYTES
            count += len(_MEDIA_PART.findall(text, at, until))
            looked += until - at
            at = until
            if looked > SLICE_BYTES:
                looked = 0
                yield
        at = end
    return count


def tokens_of_bytes(body: bytes) -> int:
    """A guess of the tokens of a body that is not read as text, at least 1."""
    return max(1, round(len(body) / MEDIA_BYTES_PER_TOKEN))
