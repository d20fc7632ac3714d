"""Parts of prompts that are no text: how many there are, and what stands for them among text."""

import re
from collections.abc import Sequence
from typing import Final

import xxhash

from balancing.outline import LARGE_BYTES, SLICE_BYTES, Steps, joined
from balancing.prompt_blocks import BLOCK_BYTES, BLOCKS_MAX, LOOKED_BYTES_MAX, compacted
from balancing.tokens import BYTES_PER_TOKEN, MEDIA_PART_TOKENS

# A part that is no text, by its type; and what is inline of one, which is no text either. An
# escaped quote before either is text that speaks of such parts.
_MEDIA_PART: Final = re.compile(
    rb'"type"\s*:\s*"(?:image|image_url|input_image|image_embeds|audio_url|input_audio'
    rb'|video|video_url|document|file|input_file)"'
)
_INLINE_MEDIA: Final = re.compile(
    rb'"(?:data"\s{0,16}:\s{0,16}"(?=[A-Za-z0-9+/=\\]{256})|data:[^",]{0,128};base64,)'
)
# Longer than what the pattern above matches or looks at: slices overlap by so much.
_INLINE_BYTES_MAX: Final = 512
# Inline data of one prompt that is told from its text; vLLM takes a thousand parts at most.
INLINE_MAX: Final = 1_024
# Of one prompt count as such: a name of one is a few bytes, and would be a thousand tokens. More
# than these are a long film's frames, each of few tokens.
MEDIA_PARTS_MAX: Final = 256

# A mark of 16 digits, as often as makes it as long as text of an image's tokens.
MARK_REPEATS: Final = round(MEDIA_PART_TOKENS * BYTES_PER_TOKEN / 16)
MARKS_MAX: Final = BLOCKS_MAX * BLOCK_BYTES // (16 * MARK_REPEATS) + 1
# Whisper has 50 positions a second (arXiv 2212.04356): 640 bytes each of 16 kHz PCM, 160 of 64
# kbit/s.
MEDIA_BYTES_PER_TOKEN: Final = 320


def has_media(text: bytes) -> bool:
    """Whether text of at most LARGE_BYTES may hold parts that are none; larger always may."""
    return len(text) > LARGE_BYTES or _MEDIA_PART.search(text) is not None


def without_media(text: bytes) -> Steps[tuple[int, bytes]]:
    """(number of parts that are no text, the JSON without their inline data)."""
    inline = yield from _inline_media(text)
    parts = yield from _parts_beside(text, inline)
    if not parts:
        return 0, text
    view = memoryview(text)
    kept, at = [], 0
    for begin, end in inline:
        kept.append(view[at:begin])
        at = end
    kept.append(view[at:])
    return parts, (yield from joined(kept))


def mark_media(parts: Sequence[bytes]) -> Steps[tuple[int, int, bytes]]:
    """(number of inline data, bytes before the first, the JSON with a mark in place of each).

    A mark is the data's hash, as long as an image's tokens are as text: equal images are equal
    text. Past what is compared there are none.
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


def _inline_media(text: bytes) -> Steps[list[tuple[int, int]]]:
    """Where each begins and ends, but for text that speaks of such data."""
    found: list[tuple[int, int]] = []
    at = past = 0
    while at < len(text) and len(found) < INLINE_MAX:
        until = min(at + SLICE_BYTES, len(text))
        for match in _INLINE_MEDIA.finditer(text, at, until):
            begin = match.end()
            if begin > past and text[match.start() - 1 : match.start()] != b"\\":
                past = text.find(b'"', begin)
                past = past if past >= 0 else len(text)
                found.append((begin, past))
        if until == len(text):
            break
        at = max(until - _INLINE_BYTES_MAX, past)
        yield
    return found[:INLINE_MAX]


def _parts_beside(text: bytes, inline: Sequence[tuple[int, int]]) -> Steps[int]:
    """How many parts that are no text are named, inline data apart."""
    count = at = looked = 0
    for begin, end in [*inline, (len(text), len(text))]:
        while at < begin:
            until = begin
            if begin - at > SLICE_BYTES:  # at a comma: what names a part holds none
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
    """A guess for a body that is not read as text, at least 1."""
    return max(1, round(len(body) / MEDIA_BYTES_PER_TOKEN))
