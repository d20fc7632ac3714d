"""Answers that are only ever one JSON object: embeddings, scores, transcripts."""

from collections.abc import Callable
from typing import Any

import orjson

from penstock.bench.sim.dialects.dialect import Spoken
from penstock.bench.sim.errors import Refusal


class Unstreamed:
    """`body_of` makes the object from the finished choices."""

    def __init__(self, body_of: Callable[[list[Any]], dict[str, Any]]) -> None:
        self._body_of = body_of

    def opening(self) -> list[bytes]:
        return []

    def first(self) -> list[bytes]:
        return []

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        raise AssertionError("this answer is never streamed")

    def closing(self, choices: list[Any]) -> list[bytes]:
        return []

    def done_only(self) -> list[bytes]:
        return []

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        return None

    def whole(self, choices: list[Any], finish: str) -> bytes:
        return orjson.dumps(self._body_of(choices))
