"""The fields at the top of a JSON body that routing reads, each left as raw JSON.

Values stay undecoded, so that odd types are the backend's to judge and a 200 KB
prompt costs tens of microseconds.
"""

from typing import Final

import msgspec

NO_FIELD: Final = msgspec.Raw()
# What msgspec raises on bytes that are no JSON; text that is no UTF-8 raises the other.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)

# What is text of a prompt, or a list of prompts; of a long value of any other field no more is
# looked at than this, which is longer than each of them may be.
READ_WHOLE: Final = frozenset(
    {"prompt", "messages", "system", "tools", "instructions", "input", "stream_options"}
    | {"texts", "images", "inputs", "query", "items"}
    | {"documents", "queries", "text_1", "text_2", "data_1", "data_2"}
)
CLIPPED_BYTES: Final = 8_192


class Fields(msgspec.Struct):
    """What a body gives; NO_FIELD where it gives nothing."""

    model: msgspec.Raw = NO_FIELD
    stream: msgspec.Raw = NO_FIELD
    stream_options: msgspec.Raw = NO_FIELD
    previous_response_id: msgspec.Raw = NO_FIELD
    n: msgspec.Raw = NO_FIELD
    max_tokens: msgspec.Raw = NO_FIELD
    max_completion_tokens: msgspec.Raw = NO_FIELD
    max_output_tokens: msgspec.Raw = NO_FIELD
    truncate_prompt_tokens: msgspec.Raw = NO_FIELD
    truncation: msgspec.Raw = NO_FIELD
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


class StreamOptions(msgspec.Struct):
    """`stream_options` of chats and completions."""

    include_usage: msgspec.Raw = NO_FIELD
    continuous_usage_stats: msgspec.Raw = NO_FIELD


# A boolean as pydantic reads one, also from numbers and strings.
_TRUE: Final = frozenset(
    (b"true", b"1", b"1.0", b'"1"', b'"true"', b'"t"', b'"yes"', b'"y"', b'"on"')
)
_FALSE: Final = frozenset(
    (b"false", b"0", b"0.0", b'"0"', b'"false"', b'"f"', b'"no"', b'"n"', b'"off"')
)
_TRUTH_BYTES_MAX: Final = 7


def truth(raw: msgspec.Raw) -> bool | None:
    """A boolean in any of its spellings; None for anything else, which a backend refuses."""
    value = bytes(raw)
    if value == b"true":
        return True
    if len(value) > _TRUTH_BYTES_MAX:
        return None
    value = value.lower() if value.startswith(b'"') else value
    return True if value in _TRUE else False if value in _FALSE else None
