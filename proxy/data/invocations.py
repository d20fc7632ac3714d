"""SageMaker's one path for all APIs. The body tells which API it is for."""

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.balancing.field_values import NO_FIELD
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps

INVOCATIONS: Final = b"/invocations"
# Names the model to vLLM, before the `model` in the body.
ADAPTER: Final = b"x-amzn-sagemaker-adapter-identifier"
# Where a body goes that has one of these members. vLLM tries one API after the other until one
# takes the whole body, so one that is for two of them may end at either.
_PATHS: Final = (
    (b"/v1/chat/completions", ("messages",)),
    (b"/v1/completions", ("prompt", "prompt_embeds")),
    (b"/pooling", ("input",)),
    (b"/score", ("query", "queries", "data_1", "text_1")),
)
SEVERAL: Final = (
    "Give one of `messages`, `prompt`, `input` and `query`: they are for different APIs."
)
TWO_ADAPTERS: Final = f"Give the header {ADAPTER.decode()} once."


class _Given(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD
    prompt_embeds: msgspec.Raw = NO_FIELD
    input: msgspec.Raw = NO_FIELD
    query: msgspec.Raw = NO_FIELD
    queries: msgspec.Raw = NO_FIELD
    data_1: msgspec.Raw = NO_FIELD
    text_1: msgspec.Raw = NO_FIELD


_given = msgspec.json.Decoder(_Given)


def invoked_path(body: bytes) -> Steps[bytes]:
    """The path of the API that a body is for. Raises MalformedAsk if it may be for several."""
    try:
        given = yield from members(body, _given)
    except NoObject:
        return b"/pooling"  # reading it there fails, with the right error
    found: list[bytes] = []
    for path, names in _PATHS:
        if any(bytes(getattr(given, name)) not in (b"", b"null") for name in names):
            found.append(path)
    if len(found) > 1:
        raise MalformedAsk(SEVERAL)
    return found[0] if found else b"/pooling"


def adapter_of(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The model that the head names, before the body's. Raises MalformedAsk for two headers."""
    named = [value for name, value in headers if name == ADAPTER]
    if len(named) > 1:
        raise MalformedAsk(TWO_ADAPTERS)
    return named[0].decode("latin-1") or None if named else None
