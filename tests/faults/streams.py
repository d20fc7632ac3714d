"""A client's stream in any dialect, read to its end and judged: whole, told broken, or worse."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

import orjson

from penstock.bench.sim.prompt import render
from penstock.bench.sim.text import expected
from tests.e2e.answers import ENDS, dechunked

TOKENS: Final = 30
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
PATHS: Final = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


class Verdict(StrEnum):
    """What became of a stream, from its client's side."""

    WHOLE = "whole"
    HIDDEN = "hidden"  # whole, though an attempt had failed
    TOLD = "told broken"
    SILENT = "silent truncation"  # it looks whole and is not
    HUNG = "hung"
    MIXED = "mixed bytes"  # text that is not this prompt's


@dataclass(slots=True)
class Stream:
    """One request; its prompt is like no other's, and so is the text that must come."""

    prompt: str
    path: str
    http11: bool = True
    verdict: Verdict = Verdict.HUNG
    status: int = 0

    @property
    def asked(self) -> dict[str, Any]:
        turns = [{"role": "user", "content": self.prompt}]
        shapes: dict[str, dict[str, Any]] = {
            CHAT: {"messages": turns, "max_tokens": TOKENS},
            COMPLETIONS: {"prompt": self.prompt, "max_tokens": TOKENS},
            RESPONSES: {"input": self.prompt, "max_output_tokens": TOKENS},
            MESSAGES: {"messages": turns, "max_tokens": TOKENS},
        }
        # Usage is asked for, so that the body goes up as it is and its hash can be compared.
        usage = (
            {"stream_options": {"include_usage": True}} if self.path in (CHAT, COMPLETIONS) else {}
        )
        return {"model": "sim-model", "stream": True, **shapes[self.path], **usage}

    @property
    def wanted(self) -> str:
        if self.path == COMPLETIONS:
            return expected(self.prompt, TOKENS)
        return expected(render([{"role": "user", "content": self.prompt}]), TOKENS)

    async def run(self, port: int, limit_s: float) -> None:
        """Ask, read until the connection ends, judge; HUNG when that takes `limit_s`."""
        body = orjson.dumps(self.asked)
        head = (
            f"POST {self.path} HTTP/1.{int(self.http11)}\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"x-check: {sha256(body).hexdigest()}\r\n\r\n"
        )
        raw, reset = b"", False
        try:
            async with asyncio.timeout(limit_s):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(head.encode() + body)
                    while data := await reader.read(65_536):
                        raw += data
                except ConnectionResetError:
                    reset = True
                finally:
                    writer.close()
        except TimeoutError:
            return
        self.verdict = self.judge(raw, reset=reset)

    def judge(self, raw: bytes, *, reset: bool) -> Verdict:
        """By the framing, the dialect's end and the text."""
        head, _, body = raw.partition(b"\r\n\r\n")
        if not head:
            return Verdict.TOLD
        self.status = int(head.split(b" ", 2)[1])
        if self.status != 200:
            return Verdict.TOLD if b'"error"' in body else Verdict.SILENT
        ended = not reset
        if b"\r\ntransfer-encoding: chunked" in head:
            body, ended = dechunked(body)
        text, wanted = text_of(self.path, body), self.wanted
        if not wanted.startswith(text):
            return Verdict.MIXED
        if not ended:
            return Verdict.TOLD
        if text != wanted or not body.endswith(ENDS[self.path]) or b'"stream_broken"' in body:
            return Verdict.SILENT
        first = b"\r\nx-penstock-attempts: 1\r\n" in head or b"\r\nx-penstock-attempts" not in head
        return Verdict.WHOLE if first else Verdict.HIDDEN


def text_of(path: str, body: bytes) -> str:
    """The text in the whole events of a stream."""
    said = []
    for event in body.split(b"\n\n")[:-1]:
        data = event.rpartition(b"\n")[2]  # text may hold the marker, but no line end
        if not data.startswith(b"data: {"):
            continue
        told = orjson.loads(data[6:])
        if path == CHAT:
            said += [choice["delta"].get("content") or "" for choice in told.get("choices", ())]
        elif path == COMPLETIONS:
            said += [choice["text"] for choice in told.get("choices", ())]
        elif path == RESPONSES and told["type"] == "response.output_text.delta":
            said.append(told["delta"])
        elif path == MESSAGES and told["type"] == "content_block_delta":
            said.append(told["delta"]["text"])
    return "".join(said)
