"""What is played to the peers: a piece of a workload of the routing experiments, at a load.

An arrival becomes a request on the wire, with the only answer that is right. A block of the trace
becomes 2,048 bytes of text, the same wherever it is named, four bytes a token as the simulated
servers count; what follows the blocks is the request's own.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import orjson

from penstock.bench.client import post
from penstock.bench.peers.peer import KEY, MODEL
from penstock.bench.routing.cell import recorded
from penstock.bench.routing.generators import GENERATORS
from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival, UnknownFormat, fitting
from penstock.bench.routing.trace import speedup as speedup_for
from penstock.bench.sim.profiles import GPUS
from penstock.bench.sim.prompt import render
from penstock.bench.sim.text import TOKEN_BYTES, expected

# How often the length of the piece is fitted to its own work, so that its load is the one asked.
FITS: Final = 5
REQUESTS_MIN: Final = 10
# Answers are cut to this many tokens: what is compared is where requests go, which first tokens
# show, and `bench overhead` says what an event costs.
OUTPUT_TOKENS_MAX: Final = 32
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


@dataclass(frozen=True, slots=True)
class Workload:
    """`name` is a generator's or a trace file; `length_s` in the engines' seconds."""

    name: str
    profile: str
    servers: int
    load: float
    length_s: float
    seed: int

    @property
    def title(self) -> str:
        return self.name if self.name in GENERATORS else Path(self.name).name.partition(".")[0]

    def arrivals(self) -> list[Arrival]:
        """In the engines' time, from 0 s on. Raises UnknownFormat, OSError.

        The piece is as long as its load makes it: dense work is played slower, and so less of it.
        """
        profile = GPUS[self.profile]
        window_s = self.length_s
        played: list[Arrival] = []
        for _ in range(FITS):
            known = self._known(window_s)
            faster = speedup_for(known, profile, self.servers, self.load)
            played = [each._replace(at_s=each.at_s / faster) for each in known]
            window_s = self.length_s * faster
        return [each for each in played if each.at_s < self.length_s]

    def _known(self, window_s: float) -> list[Arrival]:
        rng = Random(self.seed)
        if self.name in GENERATORS:
            known = GENERATORS[self.name](window_s, rng)
        else:
            known = recorded(Path(self.name), window_s, rng)
        known = fitting(known, GPUS[self.profile])
        if len(known) < REQUESTS_MIN:
            raise UnknownFormat(f"{self.title}: {len(known)} requests in {window_s:.0f} s of it")
        return [
            each._replace(
                output_tokens=min(each.output_tokens, OUTPUT_TOKENS_MAX),
                prefix=each.prefix[: each.prompt_tokens // BLOCK_TOKENS],
            )
            for each in known
        ]

    def prompts(self) -> list[Prompt]:
        salt = f"{self.title} {self.seed}"
        return [Prompt.of(each, salt) for each in self.arrivals()]
