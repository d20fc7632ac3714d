"""The top-level fields of a JSON body that routing reads, each as raw JSON.

Values stay undecoded. So odd types are left for the backend to judge, and a 200 KB prompt costs
tens of microseconds.
"""

import re
from typing import Final

import msgspec

NO_FIELD: Final = msgspec.Raw()
# msgspec raises DecodeError for bytes that are not JSON, UnicodeDecodeError for bad UTF-8.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)

# Fields that hold text of a prompt or a list of prompts. Of any other field no more than
# CLIPPED_BYTES is read, which is more than any of them may need.
READ_WHOLE: Final = frozenset(
    {"prompt", "messages", "system", "tools", "instructions", "input", "stream_options"}
    | {"token_ids"}
    | {"texts", "images", "inputs", "query", "items"}
    | {"documents", "queries", "text_1", "text_2", "data_1", "data_2"}
)
CLIPPED_BYTES: Final = 8_192


class BeamFields(msgspec.Struct):
    """The field that asks for a beam search."""

    use_beam_search: msgspec.Raw = NO_FIELD


class Fields(BeamFields):
    """The fields of a body. NO_FIELD where the body has none."""

    model: msgspec.Raw = NO_FIELD
    stream: msgspec.Raw = NO_FIELD
    stream_options: msgspec.Raw = NO_FIELD
    previous_response_id: msgspec.Raw = NO_FIELD
    background: msgspec.Raw = NO_FIELD
    n: msgspec.Raw = NO_FIELD
    max_tokens: msgspec.Raw = NO_FIELD
    max_completion_tokens: msgspec.Raw = NO_FIELD
    max_output_tokens: msgspec.Raw = NO_FIELD
    min_tokens: msgspec.Raw = NO_FIELD
    truncate_prompt_tokens: msgspec.Raw = NO_FIELD
    truncation: msgspec.Raw = NO_FIELD
    service_tier: msgspec.Raw = NO_FIELD
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
    n: msgspec.Raw = NO_FIELD
    prompt_logprobs: msgspec.Raw = NO_FIELD


class StreamOptions(msgspec.Struct):
    """`stream_options` of chats and completions."""

    include_usage: msgspec.Raw = NO_FIELD
    continuous_usage_stats: msgspec.Raw = NO_FIELD


# A boolean in all forms that pydantic accepts, also numbers and strings.
_TRUE: Final = frozenset(
    (b"true", b"1", b"1.0", b'"1"', b'"true"', b'"t"', b'"yes"', b'"y"', b'"on"')
)
_FALSE: Final = frozenset(
    (b"false", b"0", b"0.0", b'"0"', b'"false"', b'"f"', b'"no"', b'"n"', b'"off"')
)
_TRUTH_BYTES_MAX: Final = 7


def truth(raw: msgspec.Raw) -> bool | None:
    """A boolean in any of these forms. None for anything else, which a backend refuses."""
    value = bytes(raw)
    if value == b"true":
        return True
    if len(value) > _TRUTH_BYTES_MAX:
        return None
    value = value.lower() if value.startswith(b'"') else value
    return True if value in _TRUE else False if value in _FALSE else None


# Pydantic takes these strings for integers: "16", " +1_000 ", "16.0".
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}(?:_[0-9]{1,18}){0,4}(?:\.0+)?", re.ASCII)


def whole_number(raw: msgspec.Raw) -> int | None:
    """What a backend takes for an integer that is not written as one: `4e3`, `16.0`, `"16"`.

    None for anything else, which a backend refuses.
    """
    value = bytes(raw)
    if value == b"true":
        return 1
    try:
        given = msgspec.json.decode(value)
    except (*UNREADABLE, RecursionError):
        return None
    if isinstance(given, float):
        return int(given) if given.is_integer() else None
    if isinstance(given, str) and _WHOLE.fullmatch(given.strip()):
        return int(given.strip().partition(".")[0])
    return None


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
    return truth(fields.use_beam_search) is True


_sampling: Final = msgspec.json.Decoder(SamplingParams)


def read_sampling(fields: Fields) -> None:
    """Take from `sampling_params` what other APIs have at the top."""
    try:
        given = _sampling.decode(fields.sampling_params)
    except (*UNREADABLE, RecursionError):
        given = SamplingParams()
    fields.max_tokens, fields.n = given.max_tokens, given.n
    fields.prompt_logprobs = given.prompt_logprobs
    fields.max_completion_tokens = fields.max_output_tokens = NO_FIELD
