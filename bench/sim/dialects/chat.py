"""/v1/chat/completions: a role chunk with the first token, or early; the end is `[DONE]`."""

from typing import Any, Final

import orjson

from penstock.bench.sim.dialects.dialect import (
    Identity,
    Spoken,
    id_list,
    openai_usage,
    quoted,
    text_of,
    usage_json,
    usage_of,
)
from penstock.bench.sim.errors import Refusal
from penstock.bench.sim.job import Job

DONE: Final = b"data: [DONE]\n\n"
_NO_DETAILS: Final = b',"completion_tokens_details":null'


class Chat:
    def __init__(self, identity: Identity, job: Job) -> None:
        self._identity = identity
        self._job = job
        self._head = (
            b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":%d,"model":%b,'
            b'"choices":['
        ) % (identity.request_id.encode(), identity.created, quoted(identity.model))
        self._tool = job.script.tool if job.script is not None else None
        said, self._close = b'{"content":"', b'"}'
        if self._tool is not None:
            said, self._close = b'{"tool_calls":[{"index":0,"function":{"arguments":"', b'"}}]}'
        self._deltas = [self._head + b'{"index":%d,"delta":%b' % (i, said) for i in range(job.n)]
        self._fingerprint = b',"system_fingerprint":%b' % quoted(identity.fingerprint)

    def opening(self) -> list[bytes]:
        return self._roles() if self._job.early_role else []

    def first(self) -> list[bytes]:
        roles = [] if self._job.early_role else self._roles()
        return roles if self._tool is None else [*roles, *map(self._call, range(self._job.n))]

    def _roles(self) -> list[bytes]:
        """The first chunk of each choice."""
        job = self._job
        usage = usage_json(job.prompt_tokens, 0, _NO_DETAILS) if job.continuous_usage else b""
        ids = id_list(job.prompts[0].token_ids()) if job.return_token_ids else b"null"
        return [
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]%b,"prompt_token_ids":%b,"prompt_text":null}\n\n'
            % (self._head, i, usage, ids)
            for i in range(job.n)
        ]

    def _call(self, index: int) -> bytes:
        """The chunk that names the tool; its arguments follow."""
        call = {"index": 0, **self._call_of(index, "")}
        return (
            b'%b{"index":%d,"delta":{"tool_calls":[%b]},"logprobs":null,"finish_reason":null}]}\n\n'
        ) % (self._head, index, orjson.dumps(call))

    def _call_of(self, index: int, arguments: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-tool-{self._identity.request_id}-{index}",
            "type": "function",
            "function": {"name": self._tool, "arguments": arguments},
        }

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        job = self._job
        usage = b""
        if job.continuous_usage:
            usage = usage_json(choice.prompt.tokens, choice.completion_tokens, _NO_DETAILS)
        if finish is None:
            return b'%b%b%b,"logprobs":null,"finish_reason":null,"token_ids":%b}]%b}\n\n' % (
                self._deltas[choice.index],
                text,
                self._close,
                token_ids,
                usage,
            )
        return (
            b'%b%b%b,"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":%b}]%b%b'
            b"}\n\n"
        ) % (
            self._deltas[choice.index],
            text,
            self._close,
            finish.encode(),
            token_ids,
            usage,
            b"" if job.include_usage else self._fingerprint,
        )

    def closing(self, choices: list[Any]) -> list[bytes]:
        if not self._job.include_usage:
            return [DONE]
        usage = usage_json(*usage_of(choices))
        return [b"%b]%b%b}\n\n" % (self._head, usage, self._fingerprint), DONE]

    def done_only(self) -> list[bytes]:
        return [*self.first(), DONE]

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        return [refusal.event(), DONE]

    def whole(self, choices: list[Any], finish: str) -> bytes:
        identity, job = self._identity, self._job
        ids = job.prompts[0].token_ids() if job.return_token_ids else None
        return orjson.dumps(
            {
                "id": f"chatcmpl-{identity.request_id}",
                "object": "chat.completion",
                "created": identity.created,
                "model": identity.model,
                "choices": [self._choice(choice, finish) for choice in choices],
                "service_tier": None,
                "system_fingerprint": identity.fingerprint,
                "usage": openai_usage(*usage_of(choices)),
                "prompt_logprobs": None,
                "prompt_token_ids": ids,
                "prompt_text": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _choice(self, choice: Spoken, finish: str) -> dict[str, Any]:
        ids = [token.token_id for token in choice.tokens] if self._job.return_token_ids else None
        text = text_of(choice)
        said = {}
        if self._tool is not None:
            said = {"tool_calls": [self._call_of(choice.index, text)]}
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": text if self._tool is None else None,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                **said,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": ids,
            "routed_experts": None,
        }
