"""The members of events and of whole answers that dialects read. The rest of them stays unread.

Here and not beside their readers, because mypyc would drop the annotations of these classes.
"""

import msgspec

from penstock.balancing.field_values import NO_FIELD


class Details(msgspec.Struct):
    """What `usage` tells of the prompt's tokens."""

    cached_tokens: int | None = None


class Counts(msgspec.Struct):
    """`usage` with the names of the three APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens_details: Details | None = None


class Choice(msgspec.Struct):
    """A choice of a chunk, of chat or completions."""

    index: int = 0
    finish_reason: msgspec.Raw = msgspec.Raw()
    delta: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()


class Chunk(msgspec.Struct):
    """A chunk of chat or completions."""

    choices: list[Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class LargeChunk(msgspec.Struct):
    """The same with its choices undecoded: there may be very many."""

    choices: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class Said(msgspec.Struct):
    """A choice of a whole answer."""

    message: dict[str, msgspec.Raw] | None = None
    text: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()


class Fault(msgspec.Struct):
    """`error` of a chunk."""

    code: int = 500


class Stop(msgspec.Struct):
    """`delta` of Anthropic's `message_delta`."""

    stop_reason: msgspec.Raw = msgspec.Raw()


class MessagesEvent(msgspec.Struct):
    """An event of Anthropic's messages."""

    type: str = ""
    usage: msgspec.Raw = msgspec.Raw()
    delta: Stop | None = None


class Response(msgspec.Struct):
    """The response that an event of the responses API is about."""

    id: msgspec.Raw = msgspec.Raw()
    status: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


class ResponsesEvent(msgspec.Struct):
    """An event of the responses API."""

    type: str = ""
    response: Response | None = None


class Units(msgspec.Struct):
    """What Cohere bills."""

    input_tokens: int | None = None
    image_tokens: int | None = None


class Meta(msgspec.Struct):
    """`meta` of Cohere's embed."""

    billed_units: Units | None = None


class Whole(msgspec.Struct):
    """The members. NO_FIELD where the answer has none; a list has none of them."""

    id: msgspec.Raw = NO_FIELD
    object: msgspec.Raw = NO_FIELD
    type: msgspec.Raw = NO_FIELD
    status: msgspec.Raw = NO_FIELD
    stop_reason: msgspec.Raw = NO_FIELD
    usage: msgspec.Raw = NO_FIELD
    meta: msgspec.Raw = NO_FIELD
    error: msgspec.Raw = NO_FIELD
    choices: msgspec.Raw = NO_FIELD
    output: msgspec.Raw = NO_FIELD
    content: msgspec.Raw = NO_FIELD
