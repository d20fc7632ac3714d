"""An arrival of an experiment as a request on the wire, with the only answer that is right.

A block of the trace becomes 2,048 bytes of text, the same wherever it is named, four bytes a
token as the simulated servers count; what follows the blocks is the request's own.
"""

from dataclasses import dataclass
from typing import Final

import orjson

from penstock.bench.client import post
from penstock.bench.peers.peer import KEY, MODEL
from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival
from penstock.bench.sim.prompt import render
from penstock.bench.sim.text import TOKEN_BYTES, expected

_HEADERS: Final = {"authorization": f"Bearer {KEY}"}
# What each proxy takes for the key of a session.
_SESSION: Final = ("x-session-id", "x-smg-routing-key")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One chat request: when, what, and what is to come of it."""

    arrival: Arrival
    text: str

    @classmethod
    def of(cls, arrival: Arrival, salt: str) -> "Prompt":
        """`salt` tells the blocks of one run from those of another."""
        parts = [_filled(f"{salt} {name:d} ", BLOCK_TOKENS) for name in arrival.prefix]
        rest = arrival.prompt_tokens - len(parts) * BLOCK_TOKENS
        parts.append(_filled(f"{salt} {arrival.at_s:.6f} ", max(1, rest - _TURN_TOKENS)))
        return cls(arrival, "".join(parts))

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.text}]

    @property
    def body(self) -> bytes:
        tokens = max(1, self.arrival.output_tokens)
        about = {"model": MODEL, "messages": self.messages, "max_tokens": tokens, "stream": True}
        return orjson.dumps(about)

    @property
    def headers(self) -> dict[str, str]:
        session = self.arrival.session
        return _HEADERS if session is None else _HEADERS | dict.fromkeys(_SESSION, session)

    @property
    def raw(self) -> bytes:
        """The request as it goes on the wire."""
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return post("/v1/chat/completions", self.body, headers.encode())

    @property
    def answer(self) -> str:
        """The text that a simulated server gives."""
        return expected(render(self.messages), max(1, self.arrival.output_tokens))


def _filled(text: str, tokens: int) -> str:
    size = tokens * TOKEN_BYTES
    return (text * (size // len(text) + 1))[:size]


# What the roles of a conversation add to one message.
_TURN_TOKENS: Final = -(-len(render([{"role": "user", "content": ""}])) // TOKEN_BYTES)
