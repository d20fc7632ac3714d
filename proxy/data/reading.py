"""Reads from its body what a request wants, and which edits the body needs for a backend.

The body of SageMaker's one path for all APIs tells which API it is for.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from penstock.balancing.ask import Ask
from penstock.balancing.field_scan import NO_OBJECT
from penstock.balancing.field_values import NO_FIELD
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps
from penstock.balancing.reader import reading_unseen
from penstock.proxy.data.endpoints import INVOCATIONS, Endpoint
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.errors.client import BadRequest
from penstock.proxy.wire.edit import Edits
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import RequestHead

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
_given: Final = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Given",
        [(name, msgspec.Raw, NO_FIELD) for _, names in _PATHS for name in names],
    )
)

# The request, its endpoint, whether the backend is asked for usage that the client did not ask for,
# and the edits of its body. A plain tuple, because a named one is ten times as expensive to make.
Wanted = tuple[Ask, Endpoint, bool, Edits]


def wanted(
    plane: DataPlane, head: RequestHead, endpoint: Endpoint, body: bytes, party: str
) -> Wanted | None:
    """Read a usual request in one turn, and ask for usage if it streams. Raises BadRequest.

    None: `reading_wanted` must read it.
    """
    path, tenant = head.path.decode("ascii"), head.tenant
    client = tenant or party
    if endpoint.first_pool or head.path == INVOCATIONS:
        return None
    try:
        ask = plane.reader.glance(path, head.headers, body, endpoint.work, tenant, client)
    except MalformedAsk as error:
        raise BadRequest(str(error)) from None
    return _edited(plane, ask, endpoint, head, body) if ask is not None else None


def reading_wanted(
    plane: DataPlane, head: RequestHead, endpoint: Endpoint, body: bytes, party: str
) -> Iterator[Wanted | None]:
    """`wanted` for any request. Yields None while there is more to read.

    (Returning the result by StopIteration costs more.)
    """
    path, model = head.path, None
    try:
        if path == INVOCATIONS:
            model = adapter_of(head.headers)
            path = yield from invoked_path(body)
            endpoint = plane.paths.find(b"POST", path) or endpoint
        ask = yield from reading_ask(
            plane, path.decode("ascii"), endpoint, head.headers, body, head.tenant, party
        )
    except MalformedAsk as error:
        raise BadRequest(str(error)) from None
    if model is not None:
        ask = ask.changed(model=model)
    yield _edited(plane, ask, endpoint, head, body)


def reading_ask(
    plane: DataPlane,
    path: str,
    endpoint: Endpoint,
    headers: Headers,
    body: bytes,
    tenant: str,
    party: str = "",
) -> Steps[Ask]:
    """Read what a request wants. Its client is a tenant or an address. Raises MalformedAsk."""
    if endpoint.first_pool:
        return (yield from reading_unseen(path, body, tenant, tenant or party))
    return (
        yield from plane.reader.reading(path, headers, body, endpoint.work, tenant, tenant or party)
    )


def _edited(
    plane: DataPlane, ask: Ask, endpoint: Endpoint, head: RequestHead, body: bytes
) -> Wanted:
    if ask.response_id is not None and ask.engine:
        # The engine reads the conversation before it, too.
        tokens = plane.gate.owners.tokens_of(ask.response_id, ask.tenant, plane.now())
        ask = ask.changed(prompt_tokens=ask.prompt_tokens + tokens) if tokens else ask
    needs_body = not (endpoint.anywhere or endpoint.first_pool)
    if not body and head.method == b"POST" and needs_body:
        raise BadRequest(NO_OBJECT)
    if ask.usage_options and endpoint.dialect.asks_usage:
        return ask, endpoint, True, ((b"stream_options", ask.usage_options),)
    return ask, endpoint, False, ()


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
