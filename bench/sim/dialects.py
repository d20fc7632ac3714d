"""The wire formats of vLLM's APIs, streamed and whole.

Events are complete SSE events as bytes, ready to be framed as chunks. `delta` runs once per
token and must stay a matter of joining bytes made in advance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from penstock.bench.sim.errors import Refusal
from penstock.bench.sim.job import Job
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.text import Token

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of an answer repeats."""

    request_id: str
    created: int
    model: str
    fingerprint: str


class Spoken(Protocol):
    """One choice of an answer: its prompt, the tokens shown so far, and how many there were."""

    index: int
    prompt: Prompt
    tokens: list[Token]

    @property
    def completion_tokens(self) -> int: ...


class Dialect:
    """One answer in one API's format."""

    def __init__(self, identity: Identity, job: Job) -> None:
        self._identity = identity
        self._job = job

    def opening(self) -> list[bytes]:
        """Events sent before the engine has done anything."""
        return []

    def first(self) -> list[bytes]:
        """Events sent with the first token."""
        return []

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        """The event of new text, given as JSON fragments."""
        raise AssertionError("this answer is never streamed")

    def closing(self, choices: Sequence[Spoken]) -> list[bytes]:
        """Events after the last token."""
        return []

    def done_only(self) -> list[bytes]:
        """The end of a stream that had nothing to say."""
        return []

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        """Events of an error inside the stream; None when vLLM cuts the connection instead."""
        return None

    def whole(self, choices: Sequence[Spoken], finish: str) -> bytes:
        """The body of an unstreamed answer."""
        raise NotImplementedError


class Unstreamed(Dialect):
    """Answers that are only ever one JSON object: embeddings, scores, transcripts."""

    def __init__(self, body_of: Callable[[Sequence[Spoken]], dict[str, Any]]) -> None:
        """`body_of` makes the object from the finished choices."""
        self._body_of = body_of

    def whole(self, choices: Sequence[Spoken], finish: str) -> bytes:
        return orjson.dumps(self._body_of(choices))


class _OpenAi(Dialect):
    """What chats and completions have in common: the end is the usage, if asked for, and [DONE]."""

    def __init__(self, identity: Identity, job: Job, kind: str, chunk: str) -> None:
        super().__init__(identity, job)
        self._id = f"{kind}-{identity.request_id}"
        self._head = b'data: {"id":"%b","object":"%b","created":%d,"model":%b,"choices":[' % (
            *(self._id.encode(), chunk.encode()),
            *(identity.created, _quoted(identity.model)),
        )
        self._fingerprint = b',"system_fingerprint":%b' % _quoted(identity.fingerprint)

    def closing(self, choices: Sequence[Spoken]) -> list[bytes]:
        if not self._job.include_usage:
            return [DONE]
        usage = _usage_json(*usage_of(choices))
        return [b"%b]%b%b}\n\n" % (self._head, usage, self._fingerprint), DONE]

    def done_only(self) -> list[bytes]:
        return [*self.first(), DONE]

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        return [refusal.event(), DONE]

    def _whole(
        self, kind: str, choices: Sequence[Spoken], said: list[Any], more: dict[str, Any]
    ) -> bytes:
        about = {
            "id": self._id,
            "object": kind,
            "created": self._identity.created,
            "model": self._identity.model,
            "choices": said,
            "service_tier": None,
            "system_fingerprint": self._identity.fingerprint,
            "usage": openai_usage(*usage_of(choices)),
        }
        nothing = dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics"))
        return orjson.dumps(about | more | nothing)

    def _ids_of(self, choice: Spoken) -> list[int] | None:
        ids = self._job.return_token_ids
        return [token.token_id for token in choice.tokens] if ids else None


class Chat(_OpenAi):
    """/v1/chat/completions: a role chunk with the first token, or early."""

    def __init__(self, identity: Identity, job: Job) -> None:
        super().__init__(identity, job, "chatcmpl", "chat.completion.chunk")
        self._tool = job.script.tool if job.script is not None else None
        said, self._close = b'{"content":"', b'"}'
        if self._tool is not None:
            said, self._close = b'{"tool_calls":[{"index":0,"function":{"arguments":"', b'"}}]}'
        self._deltas = [self._head + b'{"index":%d,"delta":%b' % (i, said) for i in range(job.n)]

    def opening(self) -> list[bytes]:
        return self._roles() if self._job.early_role else []

    def first(self) -> list[bytes]:
        roles = [] if self._job.early_role else self._roles()
        return roles if self._tool is None else [*roles, *map(self._call, range(self._job.n))]

    def _roles(self) -> list[bytes]:
        """The first chunk of each choice."""
        job = self._job
        usage = _usage_json(job.prompt_tokens, 0, _NO_DETAILS) if job.continuous_usage else b""
        ids = id_list(job.prompts[0].token_ids()) if job.return_token_ids else b"null"
        return [
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]%b,"prompt_token_ids":%b,"prompt_text":null}\n\n'
            % (self._head, i, usage, ids)
            for i in range(job.n)
        ]

    def _call(self, index: int) -> bytes:
        """The chunk that names the tool; its arguments follow."""
        call = orjson.dumps({"index": 0, **self._call_of(index, "")})
        return (
            b'%b{"index":%d,"delta":{"tool_calls":[%b]},"logprobs":null,"finish_reason":null}]}\n\n'
        ) % (self._head, index, call)

    def _call_of(self, index: int, arguments: str) -> dict[str, Any]:
        call_id = f"chatcmpl-tool-{self._identity.request_id}-{index}"
        function = {"name": self._tool, "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        job, usage = self._job, b""
        if job.continuous_usage:
            usage = _usage_json(choice.prompt.tokens, choice.completion_tokens, _NO_DETAILS)
        said = self._deltas[choice.index], text, self._close
        if finish is None:
            return b'%b%b%b,"logprobs":null,"finish_reason":null,"token_ids":%b}]%b}\n\n' % (
                *said,
                token_ids,
                usage,
            )
        end = b"" if job.include_usage else self._fingerprint
        return (
            b'%b%b%b,"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":%b}]%b%b'
            b"}\n\n"
        ) % (*said, finish.encode(), token_ids, usage, end)

    def whole(self, choices: Sequence[Spoken], finish: str) -> bytes:
        ids = self._job.prompts[0].token_ids() if self._job.return_token_ids else None
        more = {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
        said = [self._choice(choice, finish) for choice in choices]
        return self._whole("chat.completion", choices, said, more)

    def _choice(self, choice: Spoken, finish: str) -> dict[str, Any]:
        text, calls = text_of(choice), {}
        if self._tool is not None:
            calls = {"tool_calls": [self._call_of(choice.index, text)]}
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": text if self._tool is None else None,
                **dict.fromkeys(("refusal", "annotations", "audio", "function_call")),
                **calls,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": self._ids_of(choice),
            "routed_experts": None,
        }


class Completions(_OpenAi):
    """/v1/completions: chunk 1 is token 1; several prompts interleave by `index`."""

    def __init__(self, identity: Identity, job: Job) -> None:
        super().__init__(identity, job, "cmpl", "text_completion")
        choices = range(job.n * len(job.prompts))
        self._deltas = [self._head + b'{"index":%d,"text":"' % i for i in choices]
        self._echoed: set[int] = set()

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        job, prompt_ids, usage = self._job, b"null", b""
        if job.return_token_ids and choice.index not in self._echoed:
            self._echoed.add(choice.index)
            prompt_ids = id_list(choice.prompt.token_ids())
        if job.continuous_usage:
            usage = _usage_json(choice.prompt.tokens, choice.completion_tokens)
        reason = b"null" if finish is None else _quoted(finish)
        end = b"" if finish is None or job.include_usage else self._fingerprint
        return (
            b'%b%b","logprobs":null,"finish_reason":%b,"stop_reason":null,"prompt_token_ids":%b,'
            b'"token_ids":%b}]%b%b}\n\n'
        ) % (self._deltas[choice.index], text, reason, prompt_ids, token_ids, usage, end)

    def whole(self, choices: Sequence[Spoken], finish: str) -> bytes:
        said = [self._choice(choice, finish) for choice in choices]
        return self._whole("text_completion", choices, said, {})

    def _choice(self, choice: Spoken, finish: str) -> dict[str, Any]:
        prompt_ids = choice.prompt.token_ids() if self._job.return_token_ids else None
        return {
            "index": choice.index,
            "text": text_of(choice),
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": self._ids_of(choice),
            "prompt_logprobs": None,
            "prompt_token_ids": prompt_ids,
            "routed_experts": None,
        }


_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_STOP_REASONS: Final = {"length": "max_tokens", "stop": "end_turn", "abort": None}


class Messages(Dialect):
    """/v1/messages: Anthropic's shape; named events, an end event, and no `[DONE]`."""

    _reason: str | None = None

    def first(self) -> list[bytes]:
        identity = self._identity
        start = (
            b'{"type":"message_start","message":{"id":"chatcmpl-%b","type":"message",'
            b'"role":"assistant","content":[],"model":%b,"stop_reason":null,"stop_sequence":null,'
            b'"usage":{"input_tokens":%d,"output_tokens":0}}}'
        ) % (identity.request_id.encode(), _quoted(identity.model), self._job.prompt_tokens)
        block = (
            b'{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}'
        )
        return [_named("message_start", start), _named("content_block_start", block)]

    def delta(self, choice: Spoken, text: bytes, token_ids: bytes, finish: str | None) -> bytes:
        if finish is not None:
            self._reason = _STOP_REASONS[finish]
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":'
            b'{"type":"text_delta","text":"%b"},"index":0}\n\n'
        ) % text

    def closing(self, choices: Sequence[Spoken]) -> list[bytes]:
        stop = _named("content_block_stop", b'{"type":"content_block_stop","index":0}')
        return [stop, self._end(self._reason, *usage_of(choices)), _STOP]

    def _end(self, reason: str | None, input_tokens: int, output_tokens: int) -> bytes:
        delta = (
            b'{"type":"message_delta","delta":{"stop_reason":%b,"stop_sequence":null},'
            b'"usage":{"input_tokens":%d,"output_tokens":%d}}'
        )
        values = orjson.dumps(reason), input_tokens, output_tokens
        return _named("message_delta", delta % values)

    def done_only(self) -> list[bytes]:
        start, _ = self.first()
        return [start, self._end("end_turn", self._job.prompt_tokens, 0), _STOP]

    def broken(self, refusal: Refusal) -> list[bytes] | None:
        # Of the inner error, the text of another one keeps little but the status.
        inner = f"{{'error': {{'message': '{refusal.message[:2]}...am': None, 'code': "
        inner += f"{refusal.status}}}}}"
        message = f"2 validation errors\nmodel\n  Field required [input_value={inner}]"
        error = {"type": "internal_error", "message": message}
        return [_named("error", orjson.dumps({"type": "error", "error": error}))]

    def whole(self, choices: Sequence[Spoken], finish: str) -> bytes:
        prompt_tokens, completion_tokens = usage_of(choices)
        reason = _STOP_REASONS[finish]
        answer = {
            "id": f"chatcmpl-{self._identity.request_id}",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text_of(choices[0])}],
            "model": self._identity.model,
            **({"stop_reason": reason} if reason else {}),
            "usage": {"input_tokens": prompt_tokens, "output_tokens": completion_tokens},
        }
        return orjson.dumps(answer)


# The members of vLLM's response objects and of their usage, in order.
_RESPONSE: Final[dict[str, Any]] = orjson.loads(
    b'{"id":"","created_at":0,"incomplete_details":null,"instructions":null,"metadata":null,'
    b'"model":"","object":"response","output":[],"parallel_tool_calls":true,"temperature":1.0,'
    b'"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":null,'
    b'"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,'
    b'"service_tier":"auto","status":"","text":null,"top_logprobs":null,"truncation":"disabled",'
    b'"usage":null,"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,'
    b'"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,'
    b'"output_messages":null}'
)
_USAGE: Final[dict[str, Any]] = orjson.loads(
    b'{"input_tokens":0,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0,'
    b'"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":0,'
    b'"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,'
    b'"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":0}'
)


class Responses(Dialect):
    """/v1/responses: two events before the engine has begun, then numbered ones; no `[DONE]`.

    As vLLM does, an answer that ran into its token limit still ends in a `response.completed`
    event; only the `status` inside says "incomplete".
    """

    def __init__(
        self,
        identity: Identity,
        job: Job,
        previous_response_id: str | None,
        keep: Callable[[dict[str, Any], str], None],
    ) -> None:
        """`keep` is given the finished response object, for later GETs."""
        super().__init__(identity, job)
        self._previous = previous_response_id
        self._keep = keep
        self._item_id = f"msg_{identity.request_id}"
        self._finish_reason = "abort"
        self._sequence = -1
        self._delta_tail = (
            b'","item_id":"%b","logprobs":[],"output_index":0,"sequence_number":'
            % self._item_id.encode()
        )

    def opening(self) -> list[bytes]:
        response = self._response("in_progress", [], None)
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, {"response": response}) for kind in kinds]

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
            b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"'
            b'%b%b%d,"type":"response.output_text.delta"}\n\n'
        ) % (text, self._delta_tail, self._sequence)

    def closing(self, choices: Sequence[Spoken]) -> list[bytes]:
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
        response = self._response("completed", [], (self._job.prompt_tokens, 0))
        return [self._event("response.completed", {"response": response})]

    def whole(self, choices: Sequence[Spoken], finish: str) -> bytes:
        return orjson.dumps(self._finish(choices, finish))

    def _finish(self, choices: Sequence[Spoken], finish: str) -> dict[str, Any]:
        text = text_of(choices[0])
        status = "incomplete" if finish == "length" else "completed"
        item = self._item("completed", [_content(text, None)] if text else [])
        response = self._response(status, [item], usage_of(choices))
        self._keep(response, text)
        return response

    def _event(self, kind: str, fields: dict[str, Any], *, text_last: bool = False) -> bytes:
        self._sequence += 1
        data = {**fields, "sequence_number": self._sequence}
        if text_last:
            data["text"] = data.pop("text")
        return _named(kind, orjson.dumps({**data, "type": kind}))

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        about = {"id": self._item_id, "content": content, "role": "assistant", "status": status}
        return about | {"type": "message", "phase": None}

    def _part(self, text: str, logprobs: list[Any] | None) -> dict[str, Any]:
        place = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        return place | {"part": _content(text, logprobs)}

    def _response(
        self, status: str, output: list[Any], used: tuple[int, int] | None
    ) -> dict[str, Any]:
        usage = None
        if used is not None:
            told = {"input_tokens": used[0], "output_tokens": used[1], "total_tokens": sum(used)}
            usage = _USAGE | told
        incomplete = status == "incomplete"
        return _RESPONSE | {
            "id": f"resp_{self._identity.request_id}",
            "created_at": self._identity.created,
            "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
            "model": self._identity.model,
            "output": output,
            "max_output_tokens": self._job.max_tokens,
            "previous_response_id": self._previous,
            "status": status,
            "usage": usage,
        }


def _content(text: str, logprobs: list[Any] | None) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def text_of(choice: Spoken) -> str:
    return b"".join(token.raw for token in choice.tokens).decode()


def usage_of(choices: Sequence[Spoken]) -> tuple[int, int]:
    """Prompt and completion tokens of an answer; a prompt shared by n choices counts once."""
    prompts = {id(choice.prompt): choice.prompt.tokens for choice in choices}
    return sum(prompts.values()), sum(choice.completion_tokens for choice in choices)


def openai_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The usage object of an unstreamed chat or completion."""
    counts = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + completion_tokens}
    details = dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"))
    return {**counts, "completion_tokens": completion_tokens, **details}


_NO_DETAILS: Final = b',"completion_tokens_details":null'


def _usage_json(prompt_tokens: int, completion_tokens: int, details: bytes = b"") -> bytes:
    """The `usage` member of a streamed chunk, with its leading comma."""
    counts = prompt_tokens, prompt_tokens + completion_tokens, completion_tokens
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
        *counts,
        details,
    )


def id_list(token_ids: list[int]) -> bytes:
    return b"[%b]" % b",".join(b"%d" % i for i in token_ids)


def _quoted(text: str) -> bytes:
    return orjson.dumps(text)


def _named(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
