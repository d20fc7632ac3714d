"""Requests of every dialect, streamed and plain, each with the only answer that is right.

A simulated server's words are a function of the prompt, and no two prompts are
alike, so a byte that is lost, repeated or another request's shows in the text.
"""

from dataclasses import dataclass
from random import Random
from typing import Any, Final

import orjson

from penstock.bench.client import post
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.text import expected

MODEL: Final = "sim-model"
PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
STREAMED_SHARE: Final = 0.7
# Prompts of 10 to 1,000 tokens, answers of 1 to 32.
PROMPT_BYTES_MAX: Final = 4_000
TOKENS_MAX: Final = 32
# Ids come again after so many requests, long after their answers: the proxy's table of who made
# which stored response, which has a limit of its own, is full while a run still warms up.
IDS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request and the text that it must be answered."""

    request_id: str
    path: str
    tokens: int
    text: str
    raw: bytes


def wanted(number: int, rng: Random, *, tokens: int = 0, path: str = "") -> Wanted:
    """The request with this number; `rng` decides what is not given."""
    path = path or rng.choice(PATHS)
    tokens = tokens or rng.randint(1, TOKENS_MAX)
    prompt = f"{number:09d} " + "river " * (rng.randrange(40, PROMPT_BYTES_MAX) // 6)
    body: dict[str, Any] = {"model": MODEL, "stream": rng.random() < STREAMED_SHARE}
    messages = [{"role": "user", "content": prompt}]
    if path == "/v1/completions":
        body |= {"prompt": prompt, "max_tokens": tokens}
        heard = prompt.encode()
    elif path == "/v1/responses":
        body |= {"input": prompt, "max_output_tokens": tokens, "store": False}
        heard = Prompt.from_messages(messages, None).text
    else:
        body |= {"messages": messages, "max_tokens": tokens}
        heard = Prompt.from_messages(messages, None).text
    request_id = f"bench-{number % IDS:09d}"
    raw = post(path, orjson.dumps(body), b"x-request-id: %b\r\n" % request_id.encode())
    return Wanted(request_id, path, tokens, expected(heard, tokens), raw)
