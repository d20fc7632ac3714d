"""The wire recordings in tests/golden: requests to a real vLLM and its answers.

`tests/vllm/record.py` makes them and says what was replaced in them.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import orjson

from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, POOLING, RESPONSES, Dialect

FOLDER: Final = Path(__file__).resolve().parents[3] / "golden"
DIALECTS: Final = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


@dataclass(frozen=True)
class Golden:
    """One recorded request and its answer."""

    name: str
    request: bytes
    answer: bytes

    @classmethod
    def read(cls, path: Path) -> "Golden":
        raw = path.read_bytes()
        head, separator, _ = raw.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        assert length, path
        end = len(head + separator) + int(length[1])
        return cls(path.stem, raw[:end], raw[end:])

    @property
    def path(self) -> str:
        return self.request.split(b" ", 2)[1].decode()

    @property
    def dialect(self) -> Dialect:
        return DIALECTS.get(self.path, POOLING)

    @property
    def asked(self) -> Any:
        """What the request's body says."""
        return orjson.loads(self.request.partition(b"\r\n\r\n")[2])

    @property
    def head(self) -> bytes:
        return self.answer.partition(b"\r\n\r\n")[0]

    @property
    def status(self) -> int:
        return int(self.answer.split(b" ", 2)[1])

    @property
    def streamed(self) -> bool:
        return b"text/event-stream" in self.head

    @cached_property
    def body(self) -> bytes:
        """The answer's body without its chunk sizes, as far as it came."""
        return body_of(self.answer)

    @property
    def events(self) -> list[bytes]:
        return events_of(self.body)


def body_of(answer: bytes) -> bytes:
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head:
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def events_of(body: bytes) -> list[bytes]:
    """A stream's events, each with the empty line that ends it."""
    return [event + b"\n\n" for event in body.split(b"\n\n") if event]


GOLDEN: Final = {path.stem: Golden.read(path) for path in sorted(FOLDER.glob("*.http"))}
STREAMS: Final = [name for name, each in GOLDEN.items() if each.streamed]
