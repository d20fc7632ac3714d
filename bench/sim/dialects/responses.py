"""/v1/responses: two events before the engine has begun, then numbered ones; no `[DONE]`.

As vLLM does, an answer that ran into its token limit still ends in a `response.completed`
event; only the `status` inside says "incomplete".
"""

from collections.abc import Callable
from typing import Any

import orjson

from penstock.bench.sim.dialects.dialect import Identity, Spoken, named_event, text_of, usage_of
from penstock.bench.sim.errors import Refusal
from penstock.bench.sim.job import Job


class Responses:
    """`keep` is given the finished response object, for later GETs."""

    def __init__(
        self,
        identity: Identity,
        job: Job,
        previous_response_id: str | None,
        keep: Callable[[dict[str, Any], str], None],
    ) -> None:
        self._identity = identity
        self._job = job
        self._previous = previous_response_id
        self._keep = keep
        self._item_id = f"msg_{identity.request_id}"
        self._finish_reason = "abort"
        self._sequence = -1
        self._delta_head = b'{"content_index":0,"delta":"'
        self._delta_tail = (
            b'","item_id":"%b","logprobs":[],"output_index":0,"sequence_number":'
            % self._item_id.encode()
        )

    def opening(self) -> list[bytes]:
        response = self._response("in_progress", [], None)
        return [
            self._event(kind, {"response": response})
            for kind in ("response.created", "response.in_progress")
        ]

    def first(self) -> list[bytes]:
        item = self._item("in_progress", [])
        return [
            self._event("response.output_item.added", {"item": item, "output_index": 0}),
            self._event("response.content_part.added", self._part("", [])),
        ]

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        if finish is not None:
            self._finish_reason = finish
        self._sequence += 1
        return (
            b"event: response.output_text.delta\ndata: "
            b'%b%b%b%d,"type":"response.output_text.delta"}\n\n'
        ) % (self._delta_head, text, self._delta_tail, self._sequence)

    def closing(self, choices: list[Any]) -> list[bytes]:
        text = text_of(choices[0])
        place = {"content_index": 0, "item_id": self._item_id}
        done = {**place, "logprobs": [], "output_index": 0, "text": text}
        item = self._item("completed", [_content(text, None)])
        events = [
            self._event("response.output_text.done", done, text_last=True),
            self._event("response.content_part.done", self._part(text, None)),
            self._event("response.output_item.done", {"item": item, "output_index": 0}),
        ]
        response = self._finish(choices, self._finish_reason)
        return [*events, self._event("response.completed", {"response": response})]

    def done_only(self) -> list[bytes]:
        response = self._response("completed", [], _usage(self._job.prompt_tokens, 0))
        return [self._event("response.completed", {"response": response})]

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        return None

    def whole(self, choices: list[Any], finish: str) -> bytes:
        return orjson.dumps(self._finish(choices, finish))

    def _finish(self, choices: list[Any], finish: str) -> dict[str, Any]:
        text = text_of(choices[0])
        status = "incomplete" if finish == "length" else "completed"
        content = [_content(text, None)] if text else []
        response = self._response(
            status, [self._item("completed", content)], _usage(*usage_of(choices))
        )
        self._keep(response, text)
        return response

    def _event(self, kind: str, fields: dict[str, Any], *, text_last: bool = False) -> bytes:
        self._sequence += 1
        data = {**fields, "sequence_number": self._sequence}
        if text_last:
            data["text"] = data.pop("text")
        return named_event(kind, orjson.dumps({**data, "type": kind}))

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _part(self, text: str, logprobs: list[Any] | None) -> dict[str, Any]:
        return {
            "content_index": 0,
            "item_id": self._item_id,
            "output_index": 0,
            "part": _content(text, logprobs),
        }

    def _response(
        self, status: str, output: list[Any], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        identity = self._identity
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{identity.request_id}",
            "created_at": identity.created,
            "incomplete_details": reason,
            "instructions": None,
            "metadata": None,
            "model": identity.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self._job.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": self._previous,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": usage,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }


def _content(text: str, logprobs: list[Any] | None) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _usage(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": input_tokens + output_tokens,
    }
