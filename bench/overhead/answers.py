"""The bytes of the load: what the client asks, what the backend answers, what must arrive.

Shaped like vLLM's: a chat chunk of about 250 bytes an event, one HTTP chunk an
event, an event with `finish_reason` at the end, then `data: [DONE]`. All are
made once: the backend and the client share two cores with what is measured.
"""

import json
from functools import cache
from typing import Any, Final

from penstock.bench.client import post
from penstock.bench.peers.peer import KEY, MODEL

LAST_CHUNK: Final = b"0\r\n\r\n"

_ID: Final = "chatcmpl-7c1f0a52e3d94b6f8a90b1c2d3e4f506"
_USAGE: Final = {"prompt_tokens": 23, "total_tokens": 151, "completion_tokens": 128}


def event(payload: object) -> bytes:
    """One server-sent event, spelt as vLLM spells it."""
    return b"data: %b\n\n" % json.dumps(payload, separators=(",", ":")).encode()


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _chat_event(delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": None,
        "finish_reason": finish_reason,
    }
    return event(
        {
            "id": _ID,
            "object": "chat.completion.chunk",
            "created": 1767225600,
            "model": MODEL,
            "system_fingerprint": "fp_0a1b2c3d4e5f",
            "choices": [choice],
        }
    )


TOKEN: Final = _chat_event({"content": " penstock"}, None)
LAST: Final = _chat_event({"content": " gate"}, "length")
DONE: Final = b"data: [DONE]\n\n"
USAGE: Final = event(
    {
        "id": _ID,
        "object": "chat.completion.chunk",
        "created": 1767225600,
        "model": MODEL,
        "choices": [],
        "usage": _USAGE,
    }
)

TOKEN_CHUNK: Final = chunk(TOKEN)
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def stream_end(*, usage: bool) -> bytes:
    """The last token's event, the usage if it was asked for, [DONE] and the end of the body."""
    return chunk(LAST) + (chunk(USAGE) if usage else b"") + chunk(DONE) + LAST_CHUNK


def stream_body(events: int) -> bytes:
    """What a client that did not ask for usage gets of a stream of so many token events."""
    return TOKEN * (events - 1) + LAST + DONE


def _whole(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (status, len(body), body)
    )


PLAIN_BODY: Final = json.dumps(
    {
        "id": _ID,
        "object": "chat.completion",
        "created": 1767225600,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "A gated pipe. " * 8},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": _USAGE,
    },
    separators=(",", ":"),
).encode()
PLAIN: Final = _whole(b"200 OK", PLAIN_BODY)
HEALTHY: Final = _whole(b"200 OK", b"")
NOT_FOUND: Final = _whole(b"404 Not Found", b'{"detail":"Not Found"}')
MODELS: Final = _whole(
    b"200 OK",
    json.dumps(
        {
            "object": "list",
            "data": [{"id": MODEL, "object": "model", "created": 1767225600, "owned_by": "vllm"}],
        }
    ).encode(),
)


@cache
def chat_request(*, events: int = 0, interval_ms: int = 0, prompt_bytes: int = 0) -> bytes:
    """A chat request as it goes on the wire: streamed when `events` is given, else plain.

    `prompt_bytes` are of text, a long one; else the prompt is a short question. The backend
    reads how many events and how far apart from `max_tokens` and `seed`, which every proxy passes.
    """
    question = "What does a penstock do in a power station? "
    if prompt_bytes:
        question = (question * (prompt_bytes // len(question) + 1))[:prompt_bytes]
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You answer in one short sentence."},
            {"role": "user", "content": question.strip()},
        ],
        "max_tokens": max(events, 1),
        "temperature": 0.7,
    }
    if events:
        body |= {"stream": True, "seed": interval_ms}
    content = json.dumps(body).encode()
    headers = b"user-agent: bench\r\naccept: */*\r\nauthorization: Bearer %b\r\n" % KEY.encode()
    return post("/v1/chat/completions", content, headers)


def content_of(body: bytes) -> str | None:
    """The text of a stream of chat chunks that ends as it must, else None.

    For proxies that write events anew: the words must be there, the spelling is theirs.
    """
    events = body.split(b"\n\n")
    if events[-2:] != [DONE.strip(), b""]:
        return None
    words: list[str] = []
    for event_ in events[:-2]:
        data = event_.partition(b"data: ")[2]
        if not data:  # a comment
            continue
        try:
            payload: dict[str, Any] = json.loads(data)
            words += [choice["delta"].get("content") or "" for choice in payload["choices"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # an error event, or no event at all
    return "".join(words)
