"""SageMaker's one path for every API: the body tells which it is, as it tells vLLM."""

from collections.abc import Sequence
from typing import Final

import msgspec

from balancing.fields import NO_FIELD
from balancing.members import NoObject, members
from balancing.outline import Steps

INVOCATIONS: Final = b"/invocations"
# Names the model to vLLM, which on this path reads no `model` in the body.
_ADAPTER: Final = b"x-amzn-sagemaker-adapter-identifier"


class _Given(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD


_given = msgspec.json.Decoder(_Given)


def invoked_path(body: bytes) -> Steps[bytes]:
    """The path of the API that a body is for: vLLM takes the first whose fields it holds.

    What is neither a chat nor a completion is for one of the APIs that only prefill.
    """
    try:
        given = yield from members(body, _given)
    except NoObject:
        return b"/pooling"  # refused by whoever reads it
    if bytes(given.messages) not in (b"", b"null"):
        return b"/v1/chat/completions"
    if bytes(given.prompt) not in (b"", b"null"):
        return b"/v1/completions"
    return b"/pooling"


def adapter_of(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The model that the head asks for, before whatever the body says; the last line counts."""
    named = [value for name, value in headers if name == _ADAPTER and value]
    return named[-1].decode("latin-1") if named else None
