"""The top-level fields of a JSON body that routing reads, each as raw JSON.

Values stay undecoded, so a 200 KB prompt costs tens of microseconds. A value that decides a charge,
a limit or a route is read by `field_values.py`. All others are left for the backend to judge.
"""

from typing import Final

import msgspec

from penstock.balancing.field_values import NO_FIELD, UNREADABLE
from penstock.balancing.forms import MalformedAsk

# Fields that hold text of a prompt or a list of prompts. Of any other field no more than
# CLIPPED_BYTES is read, which is more than any of them may need.
READ_WHOLE: Final = frozenset(
    {"prompt", "messages", "system", "tools", "instructions", "input", "stream_options"}
    | {"token_ids", "prompt_embeds", "sampling_params"}
    | {"texts", "images", "inputs", "query", "items"}
    | {"documents", "queries", "text_1", "text_2", "data_1", "data_2"}
)
CLIPPED_BYTES: Final = 8_192
# They are decoded in one turn.
SAMPLING_BYTES_MAX: Final = 65_536
ODD_SAMPLING: Final = f"`sampling_params` must be an object of at most {SAMPLING_BYTES_MAX} bytes."


class BeamFields(msgspec.Struct):
    """The field that asks for a beam search."""

    use_beam_search: msgspec.Raw = NO_FIELD


class Fields(BeamFields):
    """The fields of a body. NO_FIELD where the body has none."""

    model: msgspec.Raw = NO_FIELD
    stream: msgspec.Raw = NO_FIELD
    stream_options: msgspec.Raw = NO_FIELD
    previous_response_id: msgspec.Raw = NO_FIELD
    request_id: msgspec.Raw = NO_FIELD
    background: msgspec.Raw = NO_FIELD
    n: msgspec.Raw = NO_FIELD
    max_tokens: msgspec.Raw = NO_FIELD
    max_completion_tokens: msgspec.Raw = NO_FIELD
    max_output_tokens: msgspec.Raw = NO_FIELD
    min_tokens: msgspec.Raw = NO_FIELD
    truncate_prompt_tokens: msgspec.Raw = NO_FIELD
    truncation: msgspec.Raw = NO_FIELD
    service_tier: msgspec.Raw = NO_FIELD
    priority: msgspec.Raw = NO_FIELD
    cache_salt: msgspec.Raw = NO_FIELD
    prompt_logprobs: msgspec.Raw = NO_FIELD
    echo: msgspec.Raw = NO_FIELD
    logprobs: msgspec.Raw = NO_FIELD
    top_logprobs: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD
    messages: msgspec.Raw = NO_FIELD
    system: msgspec.Raw = NO_FIELD
    tools: msgspec.Raw = NO_FIELD
    instructions: msgspec.Raw = NO_FIELD
    input: msgspec.Raw = NO_FIELD
    prompt_embeds: msgspec.Raw = NO_FIELD
    token_ids: msgspec.Raw = NO_FIELD
    sampling_params: msgspec.Raw = NO_FIELD


class SamplingParams(msgspec.Struct):
    """What is read in `sampling_params` where an API has them in place of members at the top."""

    max_tokens: msgspec.Raw = NO_FIELD
    min_tokens: msgspec.Raw = NO_FIELD
    n: msgspec.Raw = NO_FIELD
    prompt_logprobs: msgspec.Raw = NO_FIELD


class StreamOptions(msgspec.Struct):
    """`stream_options` of chats and completions."""

    include_usage: msgspec.Raw = NO_FIELD
    continuous_usage_stats: msgspec.Raw = NO_FIELD


# Larger bodies are not read for it. This size takes about a millisecond.
BEAM_BYTES_MAX: Final = 1_048_576


def searches_beams(body: bytes) -> bool:
    """Whether a request asks for a beam search at the top of its JSON."""
    if len(body) > BEAM_BYTES_MAX or body.find(b'"use_beam_search"') < 0:
        return False
    try:
        fields = msgspec.json.decode(body, type=BeamFields)
    except (*UNREADABLE, RecursionError):
        return False
    return bytes(fields.use_beam_search) not in (b"", b"null", b"false")


_sampling: Final = msgspec.json.Decoder(SamplingParams)


def read_sampling(fields: Fields) -> None:
    """Take from `sampling_params` what other APIs have at the top. Raises MalformedAsk."""
    given, raw = SamplingParams(), fields.sampling_params
    if raw is not NO_FIELD:
        try:
            given = _sampling.decode(raw if len(bytes(raw)) <= SAMPLING_BYTES_MAX else b"")
        except (*UNREADABLE, RecursionError):
            raise MalformedAsk(ODD_SAMPLING) from None
    fields.max_tokens, fields.min_tokens, fields.n = given.max_tokens, given.min_tokens, given.n
    fields.prompt_logprobs = given.prompt_logprobs
