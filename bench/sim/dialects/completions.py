"""/v1/completions: chunk 1 is token 1; several prompts interleave by `index`."""

from typing import Any

import orjson

from penstock.bench.sim.dialects.chat import DONE
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


class Completions:
    def __init__(self, identity: Identity, job: Job) -> None:
        self._identity = identity
        self._job = job
        self._head = (
            b'data: {"id":"cmpl-%b","object":"text_completion","created":%d,"model":%b,"choices":['
        ) % (identity.request_id.encode(), identity.created, quoted(identity.model))
        self._deltas = [
            self._head + b'{"index":%d,"text":"' % i for i in range(job.n * len(job.prompts))
        ]
        self._fingerprint = b',"system_fingerprint":%b' % quoted(identity.fingerprint)
        self._echoed: set[int] = set()

    def opening(self) -> list[bytes]:
        return []

    def first(self) -> list[bytes]:
        return []

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        job = self._job
        prompt_ids, usage = b"null", b""
        if job.return_token_ids and choice.index not in self._echoed:
            self._echoed.add(choice.index)
            prompt_ids = id_list(choice.prompt.token_ids())
        if job.continuous_usage:
            usage = usage_json(choice.prompt.tokens, choice.completion_tokens)
        return (
            b'%b%b","logprobs":null,"finish_reason":%b,"stop_reason":null,"prompt_token_ids":%b,'
            b'"token_ids":%b}]%b%b}\n\n'
        ) % (
            self._deltas[choice.index],
            text,
            b"null" if finish is None else quoted(finish),
            prompt_ids,
            token_ids,
            usage,
            b"" if finish is None or job.include_usage else self._fingerprint,
        )

    def closing(self, choices: list[Any]) -> list[bytes]:
        if not self._job.include_usage:
            return [DONE]
        usage = usage_json(*usage_of(choices))
        return [b"%b]%b%b}\n\n" % (self._head, usage, self._fingerprint), DONE]

    def done_only(self) -> list[bytes]:
        return [DONE]

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        return [refusal.event(), DONE]

    def whole(self, choices: list[Any], finish: str) -> bytes:
        identity = self._identity
        return orjson.dumps(
            {
                "id": f"cmpl-{identity.request_id}",
                "object": "text_completion",
                "created": identity.created,
                "model": identity.model,
                "choices": [self._choice(choice, finish) for choice in choices],
                "service_tier": None,
                "system_fingerprint": identity.fingerprint,
                "usage": openai_usage(*usage_of(choices)),
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _choice(self, choice: Spoken, finish: str) -> dict[str, Any]:
        ids = self._job.return_token_ids
        return {
            "index": choice.index,
            "text": text_of(choice),
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": [token.token_id for token in choice.tokens] if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": choice.prompt.token_ids() if ids else None,
            "routed_experts": None,
        }
