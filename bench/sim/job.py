"""What a generation request asks for, whichever API it came through."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from penstock.bench.sim.errors import Refusal, invalid_field
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.script import Script, script_of

Body = Mapping[str, Any]

DEFAULT_MAX_TOKENS: Final = 16
"""vLLM's default for completions. Its chat default, the rest of the window, never ends."""


@dataclass(slots=True)
class Job:
    """Prompts to continue and how to report it."""

    prompts: list[Prompt]
    max_tokens: int = DEFAULT_MAX_TOKENS
    limit_field: str = "max_tokens"
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    script: Script | None = None
    limited: bool = True
    """Its answer is as long as it says. Otherwise the server may choose."""
    ends_itself: bool = False
    """The model says that it has finished when `max_tokens` are shown."""
    hidden_tokens: int = 0
    early_role: bool = False

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)


class Span(NamedTuple):
    """Both ends belong to it."""

    least: int
    most: int

    def draw(self, rng: Random) -> int:
        return rng.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Manner:
    """How long one server's model answers by itself, and what clients do not see of it.

    A real model decides this, and its server's parsers. Here the flags of `penstock sim` do. The
    same prompt always has the same lengths.
    """

    answer_tokens: Span | None = None
    """Of an answer whose client states no limit."""
    hidden_tokens: Span | None = None
    """Generated before the first token that is shown: thoughts, or a call that a parser holds."""
    early_role: bool = False
    """A chat's role chunk comes before the engine has done anything."""

    def apply(self, job: Job, context_tokens: int) -> None:
        """Set the lengths of an answer, so that it fits the context with its prompt."""
        rng = Random(crc32(job.prompts[0].text))
        room = context_tokens - max(prompt.tokens for prompt in job.prompts)
        if self.answer_tokens is not None and not job.limited:
            job.max_tokens = self.answer_tokens.draw(rng)
            job.ends_itself = job.max_tokens <= room
        job.max_tokens = min(job.max_tokens, room)
        if self.hidden_tokens is not None and job.max_tokens:
            job.hidden_tokens = min(self.hidden_tokens.draw(rng), room - job.max_tokens)
        job.early_role = self.early_role


def parse_body(content_type: str, raw: bytes) -> dict[str, Any]:
    """The JSON object of a request, or the refusal that vLLM gives."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(400, f"1 validation error:\n  {message}", "Bad Request")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid_field(str(error.pos), "JSON decode error") from None
    if not isinstance(body, dict):
        raise Refusal(
            400, "1 validation error:\n  Input should be a valid dictionary", "Bad Request"
        )
    return body


def chat_job(body: Body) -> Job:
    unfinished = body.get("continue_final_message") is True
    prompt = Prompt.from_messages(_messages(body), body.get("tools"), unfinished=unfinished)
    limit_field = "max_completion_tokens"
    if body.get(limit_field) is None:
        limit_field = "max_tokens"
    job = _job(body, [prompt], limit_field)
    job.script = script_of(body, prompt)
    if job.script is not None:
        length = len(job.script.tokens)
        job.max_tokens = min(length, job.max_tokens) if job.limited else length
        job.limited = True
    return job


def chat_batch_job(body: Body) -> Job:
    conversations = body.get("messages")
    if not isinstance(conversations, list) or not all(isinstance(c, list) for c in conversations):
        raise invalid_field("messages")
    prompts = [Prompt.from_messages(_messages({"messages": each})) for each in conversations]
    return _job({**body, "stream": False}, prompts, "max_tokens")


def completions_job(body: Body) -> Job:
    return _job(body, _prompts(body.get("prompt")), "max_tokens")


def responses_job(body: Body, earlier: list[Any]) -> Job:
    """`earlier` is the conversation of the response that this one follows."""
    instructions = body.get("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    messages = system + earlier + responses_input(body)
    return _job(body, [Prompt.from_messages(messages, body.get("tools"))], "max_output_tokens")


def responses_input(body: Body) -> list[Any]:
    """The new messages of a /v1/responses request."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise invalid_field("input")
    return given


def messages_job(body: Body) -> Job:
    system = body.get("system")
    head = [{"role": "system", "content": system}] if system else []
    return _job(
        body, [Prompt.from_messages(head + _messages(body), body.get("tools"))], "max_tokens"
    )


def _messages(body: Body) -> list[Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise invalid_field("messages")
    return messages


def _prompts(given: Any) -> list[Prompt]:
    if isinstance(given, str):
        return [Prompt.from_text(given)]
    if not isinstance(given, list) or not given:
        raise invalid_field("prompt")
    if is_ids(given):
        return [Prompt.from_ids(given)]
    if all(isinstance(item, str) for item in given):
        return [Prompt.from_text(item) for item in given]
    if all(map(is_ids, given)):
        return [Prompt.from_ids(item) for item in given]
    raise invalid_field("prompt", "Input should be a valid prompt")


def is_ids(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(i, int) and i >= 0 for i in given)


def _job(body: Body, prompts: list[Prompt], limit_field: str) -> Job:
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    include_usage = options.get("include_usage") is True
    return Job(
        prompts,
        max_tokens=_positive(body, limit_field, DEFAULT_MAX_TOKENS),
        limit_field=limit_field,
        n=_positive(body, "n", 1),
        stream=body.get("stream") is True,
        include_usage=include_usage,
        continuous_usage=include_usage and options.get("continuous_usage_stats") is True,
        return_token_ids=body.get("return_token_ids") is True,
        limited=body.get(limit_field) is not None,
    )


def _positive(body: Body, field: str, default: int) -> int:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_field(field, "Input should be a valid integer")
    if value < 1:
        raise Refusal(400, f"{field} must be at least 1, got {value}.", param=field)
    return value
