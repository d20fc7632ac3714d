"""The fields at the top of a JSON body that routing reads, each left as raw JSON.

Values stay undecoded, so that odd types are the backend's to judge and a 200 KB
prompt costs tens of microseconds.
"""

from typing import Final

import msgspec

NO_FIELD: Final = msgspec.Raw()
# What msgspec raises on bytes that are no JSON; text that is no UTF-8 raises the other.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)


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
    cache_salt: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD
    messages: msgspec.Raw = NO_FIELD
    system: msgspec.Raw = NO_FIELD
    tools: msgspec.Raw = NO_FIELD
    instructions: msgspec.Raw = NO_FIELD
    input: msgspec.Raw = NO_FIELD
