"""/v1/messages: Anthropic's shape; named events, an end event, and no `[DONE]`."""

from typing import Any

import orjson

from penstock.bench.sim.dialects.dialect import (
    Identity,
    Spoken,
    named_event,
    quoted,
    text_of,
    usage_of,
)
from penstock.bench.sim.errors import Refusal
from penstock.bench.sim.job import Job

_STOP = named_event("message_stop", b'{"type":"message_stop"}')
_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn", "abort": None}


class Messages:
    def __init__(self, identity: Identity, job: Job) -> None:
        self._identity = identity
        self._job = job
        self._reason: str | None = None

    def opening(self) -> list[bytes]:
        return []

    def first(self) -> list[bytes]:
        identity = self._identity
        start = (
            b'{"type":"message_start","message":{"id":"chatcmpl-%b","type":"message",'
            b'"role":"assistant","content":[],"model":%b,"stop_reason":null,"stop_sequence":null,'
            b'"usage":{"input_tokens":%d,"output_tokens":0}}}'
        ) % (identity.request_id.encode(), quoted(identity.model), self._job.prompt_tokens)
        block = (
            b'{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}'
        )
        return [named_event("message_start", start), named_event("content_block_start", block)]

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        if finish is not None:
            self._reason = _STOP_REASONS[finish]
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":'
            b'{"type":"text_delta","text":"%b"},"index":0}\n\n'
        ) % text

    def closing(self, choices: list[Any]) -> list[bytes]:
        return [
            named_event("content_block_stop", b'{"type":"content_block_stop","index":0}'),
            self._end(self._reason, *usage_of(choices)),
            _STOP,
        ]

    def _end(self, reason: str | None, input_tokens: int, output_tokens: int) -> bytes:
        return named_event(
            "message_delta",
            b'{"type":"message_delta","delta":{"stop_reason":%b,"stop_sequence":null},'
            b'"usage":{"input_tokens":%d,"output_tokens":%d}}'
            % (orjson.dumps(reason), input_tokens, output_tokens),
        )

    def done_only(self) -> list[bytes]:
        start, _ = self.first()
        return [start, self._end("end_turn", self._job.prompt_tokens, 0), _STOP]

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        # Of the inner error, the text of another one keeps little but the status.
        inner = f"{{'error': {{'message': '{refusal.message[:2]}...am': None, 'code': "
        inner += f"{refusal.status}}}}}"
        message = f"2 validation errors\nmodel\n  Field required [input_value={inner}]"
        error = {"type": "internal_error", "message": message}
        return [named_event("error", orjson.dumps({"type": "error", "error": error}))]

    def whole(self, choices: list[Any], finish: str) -> bytes:
        identity = self._identity
        prompt_tokens, completion_tokens = usage_of(choices)
        reason = _STOP_REASONS[finish]
        return orjson.dumps(
            {
                "id": f"chatcmpl-{identity.request_id}",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": text_of(choices[0])}],
                "model": identity.model,
                **({"stop_reason": reason} if reason else {}),
                "usage": {"input_tokens": prompt_tokens, "output_tokens": completion_tokens},
            }
        )
