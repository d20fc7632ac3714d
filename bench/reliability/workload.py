"""Requests of every dialect, streamed and plain, each with the only answer that is right.

A simulated server's words are a function of the prompt, and no two prompts are
alike, so a byte that is lost, repeated or another request's shows in the text.
`judge` says what an answer is worth: whole, told broken, or one of the ways it must never be.
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, Final

import orjson

from penstock.bench.client import Answer, post
from penstock.bench.peers.peer import MODEL
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.text import expected

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
    heard = Prompt.from_messages(messages, None).text
    if path == "/v1/completions":
        body |= {"prompt": prompt, "max_tokens": tokens}
        heard = prompt.encode()
    elif path == "/v1/responses":
        body |= {"input": prompt, "max_output_tokens": tokens, "store": False}
    else:
        body |= {"messages": messages, "max_tokens": tokens}
    request_id = f"bench-{number % IDS:09d}"
    raw = post(path, orjson.dumps(body), b"x-request-id: %b\r\n" % request_id.encode())
    return Wanted(request_id, path, tokens, expected(heard, tokens), raw)


class Verdict(StrEnum):
    """How an answer ended."""

    WHOLE = "whole"
    TOLD = "told broken"
    """An error of penstock's or a backend's, or an end that no client takes for whole."""
    TRUNCATED = "cut in silence"
    MIXED = "another's bytes"
    MALFORMED = "malformed"
    HUNG = "hung"
    """No end in time; said by whoever waits."""


FAULTS: Final = frozenset({Verdict.TRUNCATED, Verdict.MIXED, Verdict.MALFORMED, Verdict.HUNG})
_STOPS: Final = {"/v1/messages": b"event: message_stop\n", "/v1/responses": b"response.completed"}
_DONE: Final = b"data: [DONE]\n\n"


def judge(wanted: Wanted, answer: Answer, *, left: bool = False) -> Verdict:
    """Compare an answer with the only right one; `left`: the client did not wait for its end."""
    if not answer.status:  # closed without a word: no client takes that for an answer
        return Verdict.TOLD
    if answer.headers.get("x-request-id") != wanted.request_id:
        return Verdict.MIXED
    try:
        if answer.status != 200:
            return _refused(answer)
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return _streamed(wanted, answer, left=left)
        return _plain(wanted, answer)
    except (ValueError, KeyError, IndexError, TypeError):
        return Verdict.MALFORMED


def said(answer: Answer) -> str:
    """In which words a broken answer was told."""
    if answer.status in (0, 200):
        return "cut" if b"error" not in answer.body else "an event in the stream"
    error = orjson.loads(answer.body).get("error", {}) if answer.ended else {}
    return f"{answer.status} {error.get('code') or error.get('type') or 'cut'}"


def _refused(answer: Answer) -> Verdict:
    if not answer.ended:
        return Verdict.TOLD
    return Verdict.TOLD if orjson.loads(answer.body)["error"]["message"] else Verdict.MALFORMED


def _plain(wanted: Wanted, answer: Answer) -> Verdict:
    if not answer.ended:  # fewer bytes than its length: every client raises
        return Verdict.TOLD
    content = orjson.loads(answer.body)
    if not _own(content, wanted):
        return Verdict.MIXED
    text = _text_of(wanted.path, content)
    if text == wanted.text:
        return Verdict.WHOLE
    return Verdict.TRUNCATED if wanted.text.startswith(text) else Verdict.MIXED


def _streamed(wanted: Wanted, answer: Answer, *, left: bool) -> Verdict:
    body = bytes(answer.body)
    events, _, rest = body.rpartition(b"\n\n")
    text = ""
    for event in events.split(b"\n\n"):
        data = event.partition(b"data: ")[2]
        if not data or data == b"[DONE]":
            continue
        content = orjson.loads(data)
        if content.get("error") or content.get("type") in ("error", "response.failed"):
            return Verdict.TOLD if wanted.text.startswith(text) else Verdict.MIXED
        if not _own(content, wanted):
            return Verdict.MIXED
        text += _delta_of(content)
    if not wanted.text.startswith(text):
        return Verdict.MIXED
    if left or not answer.ended:
        return Verdict.TOLD
    stop = _STOPS.get(wanted.path, _DONE)
    return Verdict.WHOLE if text == wanted.text and stop in body and not rest else Verdict.TRUNCATED


def _own(content: Any, wanted: Wanted) -> bool:
    """Whether an object's id, where it has one, is made of the request's."""
    given = content.get("id")
    return given is None or str(given).endswith(wanted.request_id)


def _delta_of(content: Any) -> str:
    """The text that an event adds."""
    kind = content.get("type")
    if kind == "content_block_delta":
        return str(content["delta"]["text"])
    if kind == "response.output_text.delta":
        return str(content["delta"])
    if not content.get("choices"):
        return ""
    choice = content["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


def _text_of(path: str, content: Any) -> str:
    if path == "/v1/messages":
        return str(content["content"][0]["text"])
    if path == "/v1/responses":
        return str(content["output"][0]["content"][0]["text"])
    choice = content["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])
