"""SageMaker's one path for all APIs. The body tells which API it is for."""

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.balancing.fields import NO_FIELD
from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps

INVOCATIONS: Final = b"/invocations"
# Names the model to vLLM. On this path vLLM does not read `model` in the body.
ADAPTER: Final = b"x-amzn-sagemaker-adapter-identifier"


class _Given(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD


_given = msgspec.json.Decoder(_Given)


def invoked_path(body: bytes) -> Steps[bytes]:
    """The path of the API that a body is for. vLLM takes the first API whose fields it holds.

    A body that is neither a chat nor a completion is for an API that only prefills.
    """
    try:
        given = yield from members(body, _given)
    except NoObject:
        return b"/pooling"  # reading it there fails, with the right error
    if bytes(given.messages) not in (b"", b"null"):
        return b"/v1/chat/completions"
    if bytes(given.prompt) not in (b"", b"null"):
        return b"/v1/completions"
    return b"/pooling"


def adapter_of(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The model that the head names. It wins over the body. The last such header counts."""
    named = [value for name, value in headers if name == ADAPTER and value]
    return named[-1].decode("latin-1") if named else None
