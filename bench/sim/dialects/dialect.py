"""What the life of a generation needs from an API's wire format.

Events are complete SSE events as bytes, ready to be framed as chunks. `delta` runs once per
token and must stay a matter of joining bytes made in advance.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from penstock.bench.sim.errors import Refusal
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.text import Token


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of an answer repeats."""

    request_id: str
    created: int
    model: str
    fingerprint: str


class Spoken(Protocol):
    """One choice of an answer: its prompt, the tokens shown so far, and how many there were."""

    @property
    def index(self) -> int: ...
    @property
    def prompt(self) -> Prompt: ...
    @property
    def tokens(self) -> list[Token]: ...
    @property
    def completion_tokens(self) -> int: ...


class Dialect(Protocol):
    """One answer in one API's format."""

    def opening(self) -> list[bytes]:
        """Events sent before the engine has done anything."""

    def first(self) -> list[bytes]:
        """Events sent with the first token."""

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        """The event of new text, given as JSON fragments."""

    def closing(self, choices: list[Any]) -> list[bytes]:
        """Events after the last token."""

    def done_only(self) -> list[bytes]:
        """The end of a stream that had nothing to say."""

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        """Events of an error inside the stream; None when vLLM cuts the connection instead."""

    def whole(self, choices: list[Any], finish: str) -> bytes:
        """The body of an unstreamed answer."""


def text_of(choice: Spoken) -> str:
    return b"".join(token.raw for token in choice.tokens).decode()


def usage_of(choices: list[Any]) -> tuple[int, int]:
    """Prompt and completion tokens of an answer; a prompt shared by n choices counts once."""
    prompts = {id(choice.prompt): choice.prompt.tokens for choice in choices}
    return sum(prompts.values()), sum(choice.completion_tokens for choice in choices)


def openai_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The usage object of an unstreamed chat or completion."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def usage_json(prompt_tokens: int, completion_tokens: int, details: bytes = b"") -> bytes:
    """The `usage` member of a streamed chunk, with its leading comma."""
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
        prompt_tokens,
        prompt_tokens + completion_tokens,
        completion_tokens,
        details,
    )


def id_list(token_ids: list[int]) -> bytes:
    return b"[%b]" % b",".join(b"%d" % i for i in token_ids)


def quoted(text: str) -> bytes:
    return orjson.dumps(text)


def named_event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
