"""Parts of prompts that are no text: how many there are, and what stands for them among text."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import xxhash

from balancing.prompt_blocks import BLOCK_BYTES, BLOCKS_MAX, compact
from balancing.tokens import BYTES_PER_TOKEN, MEDIA_PART_TOKENS

# A part that is no text, by its type; and what is inline of one, which is no text either. An
# escaped quote before either is text that speaks of such parts.
_MEDIA_PART: Final = re.compile(
    rb'"type"\s*:\s*"(?:image|image_url|input_image|image_embeds|audio_url|input_audio'
    rb'|video|video_url|document|file|input_file)"'
)
_INLINE_MEDIA: Final = re.compile(
    rb'"(?:data"\s*:\s*"([A-Za-z0-9+/=\\]{256,})|data:[^",]{0,128};base64,([A-Za-z0-9+/=\\]*))'
)

# A mark of 16 digits, as often as makes it as long as text of an image's tokens.
MARK_REPEATS: Final = round(MEDIA_PART_TOKENS * BYTES_PER_TOKEN / 16)
MARKS_MAX: Final = BLOCKS_MAX * BLOCK_BYTES // (16 * MARK_REPEATS) + 1
# Whisper has 50 positions a second (arXiv 2212.04356): 640 bytes each of 16 kHz PCM, 160 of 64
# kbit/s.
MEDIA_BYTES_PER_TOKEN: Final = 320


def without_media(text: bytes) -> tuple[int, bytes]:
    """(number of parts that are no text, the JSON without their inline data)."""
    parts = len(_MEDIA_PART.findall(text))
    if not parts:
        return 0, text
    kept, at = [], 0
    for begin, end in _inline_media(text):
        kept.append(text[at:begin])
        at = end
    kept.append(text[at:])
    return parts, b"".join(kept)


def mark_media(parts: Sequence[bytes]) -> tuple[int, int, bytes]:
    """(number of inline data, bytes before the first, the JSON with a mark in place of each).

    A mark is the data's hash, as long as an image's tokens are as text: equal images are equal
    text. Past what is compared there are none.
    """
    number, before = 0, -1
    joined = b""
    for part in parts:
        kept: list[bytes] = []
        at = 0
        for begin, end in _inline_media(part):
            kept.append(part[at:begin])
            if number < MARKS_MAX:
                kept.append(xxhash.xxh3_64_hexdigest(part[begin:end]).encode() * MARK_REPEATS)
            if not number:
                before = len(joined) + begin
            at = end
            number += 1
        kept.append(part[at:])
        joined += compact(b"".join(kept))
    return number, before if number else len(joined), joined


def _inline_media(text: bytes) -> Iterator[tuple[int, int]]:
    """Where each begins and ends, but for text that speaks of such data."""
    for found in _INLINE_MEDIA.finditer(text):
        if text[found.start() - 1 : found.start()] != b"\\":
            yield found.start(found.lastindex or 0), found.end(found.lastindex or 0)


def tokens_of_bytes(body: bytes) -> int:
    """A guess for a body that is not read as text, at least 1."""
    return max(1, round(len(body) / MEDIA_BYTES_PER_TOKEN))
