"""Blocks of a prompt: equal beginnings, whoever wrote them down."""

import json
from typing import Any

import orjson
import pytest

from penstock.balancing.ask import FIELDS, Ask
from penstock.balancing.backend import Backend
from penstock.balancing.media import INLINE_MAX, MARKED_BYTES_MIN, mark_media
from penstock.balancing.outline import finished
from penstock.balancing.prefix_cache.blocks import BLOCK_BYTES, BLOCKS_MAX, compact, prompt_blocks
from penstock.balancing.reader import GENERATION, Reader, Work
from penstock.balancing.tokens import TokenEstimator

READER = Reader(TokenEstimator(), prefixes=True)
TURN = {"role": "user", "content": "All work and no play makes Jack a dull boy. " * 20}
ANSWER = {"role": "assistant", "content": "All play and no work makes him a mere toy. " * 20}


def blocks(**fields: Any) -> tuple[int, ...]:
    body = orjson.dumps({"model": "m", **fields})
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    return READER.read(path, [], body, GENERATION).blocks


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_a_turn_begins_with_the_one_before() -> None:
    first, second = blocks(messages=[TURN]), blocks(messages=[TURN, ANSWER, TURN])
    assert len(second) > len(first) > 0
    assert common(first, second) >= len(first) - 1  # its last may hold the closing bracket


def test_a_change_shows_from_its_block_on() -> None:
    text = "x" * 10 * BLOCK_BYTES
    changed = text[: 4 * BLOCK_BYTES] + "y" + text[4 * BLOCK_BYTES + 1 :]
    same = common(blocks(prompt=text), blocks(prompt=changed))
    assert same == 4


@pytest.mark.parametrize(
    "other",
    [{"model": "n"}, {"cache_salt": "s"}, {"tools": [{"type": "function", "name": "f"}]}],
    ids=str,
)
def test_models_salts_and_tools_share_nothing(other: dict[str, Any]) -> None:
    assert common(blocks(messages=[TURN]), blocks(**{"messages": [TURN]} | other)) == 0


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000}}
TOOL = {"type": "function", "function": {"name": "f", "description": "does it " * 90}}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("/v1/chat/completions", {"messages": [TURN, ANSWER, TURN]}),
    "tools": ("/v1/chat/completions", {"tools": [TOOL], "messages": [TURN]}),
    "no tools": ("/v1/chat/completions", {"tools": None, "messages": [TURN, TURN]}),
    "image": (
        "/v1/chat/completions",
        {"messages": [TURN, {"role": "user", "content": [IMAGE]}, TURN]},
    ),
    "system": ("/v1/messages", {"system": "Be brief. " * 99, "messages": [TURN]}),
    "instructions": ("/v1/responses", {"instructions": "Be brief. " * 99, "input": [TURN]}),
}


@pytest.mark.parametrize(("path", "fields"), SHAPES.values(), ids=SHAPES.keys())
def test_how_a_client_writes_its_json_makes_no_difference(
    path: str, fields: dict[str, Any]
) -> None:
    body = {"model": "m"} | fields
    ways = [
        orjson.dumps(body),
        json.dumps(body).encode(),
        json.dumps(body, indent=2).encode(),
        json.dumps(body, indent="\t", separators=(" , ", " : ")).encode(),
    ]
    seen = {READER.read(path, [], way, GENERATION).blocks for way in ways}
    assert len(seen) == 1
    assert min(map(len, seen)) > 0


@pytest.mark.parametrize("part", [b'[ "cut off', b'{ "a": \xff}', b"[ " * 5_000, b""])
def test_what_is_no_json_is_taken_as_it_is(part: bytes) -> None:
    assert compact(part) == part


def test_what_the_api_does_not_read_counts_for_nothing() -> None:
    junk = {"input": "word " * 30_000, "prompt": ["x"] * 9, "system": "word " * 9_000}
    plain, stuffed = ({"messages": [TURN]} | more for more in ({}, junk))
    one, other = (
        READER.read("/v1/chat/completions", [], orjson.dumps(body), GENERATION)
        for body in (plain, stuffed)
    )
    other.places = one.places
    assert all(getattr(one, name) == getattr(other, name) for name in FIELDS)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens", "/v1/embeddings"])
def test_what_generates_nothing_leaves_no_blocks(path: str) -> None:
    body = orjson.dumps({"messages": [TURN], "stream": True})
    ask = READER.read(path, [], body, Work())
    assert (ask.blocks, ask.output_tokens) == ((), 0.0)


def with_images(*images: str) -> list[dict[str, Any]]:
    """A turn, one with these images (data or an address), and one more."""
    parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    return [TURN, {"role": "user", "content": parts}, TURN]


def inline(letter: str) -> str:
    return "data:image/png;base64," + letter * 50_000


def asked(messages: list[dict[str, Any]]) -> Ask:
    body = orjson.dumps({"model": "m", "messages": messages})
    return READER.read("/v1/chat/completions", [], body, GENERATION)


def test_inline_media_are_compared_by_what_they_are() -> None:
    one, other = asked(with_images(inline("A"))), asked(with_images(inline("B")))
    before = len(asked([TURN]).blocks)
    assert one.blocks[:before] == other.blocks[:before]
    assert not {*one.blocks[before + 1 :]} & {*other.blocks}
    assert (
        asked([*with_images(inline("A")), TURN]).blocks[: len(one.blocks) - 1] == (one.blocks[:-1])
    )


def test_other_images_after_the_same_text_are_not_cached() -> None:
    backend = Backend("a", "")
    first = asked(with_images(*map(inline, "ABCDE")))
    backend.cache.index.use(first.blocks)
    tokens_before = asked([TURN]).prompt_tokens
    again = asked(with_images(*map(inline, "FGHIJ")))
    assert again.prompt_tokens > 5_000
    assert backend.cache.cached_tokens(again) < 1.2 * tokens_before + 200
    same = asked([*with_images(*map(inline, "ABCDE")), TURN])
    assert backend.cache.cached_tokens(same) > 0.8 * first.prompt_tokens


@pytest.mark.parametrize("image_tokens", [85, 4_000, 16_000])
def test_shared_text_is_worth_its_own_tokens_however_large_the_images(image_tokens: int) -> None:
    estimator = TokenEstimator()
    text = {"role": "system", "content": "Some words of a long introduction. " * 1_000}
    tokens = (
        Reader(estimator)
        .read("/v1/chat/completions", [], orjson.dumps({"messages": [text]}), GENERATION)
        .prompt_tokens
    )
    for _ in range(200):
        estimator.observe("m", (100.0, 0.0), 100 + image_tokens, media_parts=1)

    def asks(*images: str) -> Ask:
        body = orjson.dumps({"model": "m", "messages": [text, *with_images(*images)]})
        return Reader(estimator, prefixes=True).read("/v1/chat/completions", [], body, GENERATION)

    backend = Backend("a", "")
    backend.cache.index.use(asks(*map(inline, "ABCDE")).blocks)
    again = asks(*map(inline, "FGHIJ"))
    assert again.prompt_tokens > tokens + 4 * image_tokens
    assert backend.cache.cached_tokens(again) == pytest.approx(tokens, rel=0.1)
    backend.cache.index.use(again.blocks)
    assert backend.cache.cached_tokens(again) == pytest.approx(again.prompt_tokens, rel=0.15)


def test_tiny_images_stay_as_they_are() -> None:
    """A mark of 3,200 bytes for each would make 8 KB of them 2 MB of text."""
    part = orjson.dumps(with_images(*["data:;base64,AA=="] * 300))
    assert finished(mark_media([part])) == (0, len(part), part)


def test_many_small_images_are_no_flood() -> None:
    """A mark is 3,200 bytes; only the first megabyte is compared."""
    small = "data:;base64," + "A" * MARKED_BYTES_MIN
    parts = [orjson.dumps(with_images(*[small] * 20_000))]
    number, before, joined = finished(mark_media(parts))
    assert number == INLINE_MAX
    assert before < len(joined) < len(parts[0]) + 2 * BLOCKS_MAX * BLOCK_BYTES


def test_media_that_are_elsewhere_are_in_no_block() -> None:
    backend = Backend("a", "")
    first = asked(with_images(*[f"https://h/{number}.png" for number in range(5)]))
    backend.cache.index.use(first.blocks)
    assert first.prompt_tokens > 5_000
    assert backend.cache.cached_tokens(first) < first.prompt_tokens - 4_000


def test_nobody_asks_nothing_is_hashed() -> None:
    body = orjson.dumps({"prompt": "x" * 5_000})
    assert Reader(TokenEstimator()).read("/v1/completions", [], body, GENERATION).blocks == ()


def test_several_prompts_have_no_common_beginning() -> None:
    assert blocks(prompt=["x" * 5_000, "y" * 5_000]) == ()


def test_blocks_are_bounded() -> None:
    text = b'"' + b"x" * (BLOCK_BYTES * (BLOCKS_MAX + 10)) + b'"'
    assert len(prompt_blocks(b"", text)) == BLOCKS_MAX


def test_tokens_of_blocks_never_reach_the_whole_prompt() -> None:
    body = orjson.dumps({"model": "m", "messages": [TURN, ANSWER] * 10})
    ask = READER.read("/v1/chat/completions", [], body, GENERATION)
    backend = Backend("a", "")
    assert backend.cache.cached_tokens(ask) == 0
    backend.cache.index.use(ask.blocks[: len(ask.blocks) // 2])
    assert backend.cache.cached_tokens(ask) == pytest.approx(ask.prompt_tokens / 2, rel=0.05)
    backend.cache.index.use(ask.blocks)
    assert ask.prompt_tokens > backend.cache.cached_tokens(ask) > 0.95 * ask.prompt_tokens
