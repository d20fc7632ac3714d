"""The edits of a body: an answer that may be shorter, and usage that its client did not ask for.

Each API has its own members. Each that is larger is lowered, also the least that a client asks for.
If the one that every server knows is not there, it is added. All other bytes stay.
"""

from typing import Final

import msgspec

from penstock.balancing.apis import COMPLETIONS, GENERATE, Api, api_of
from penstock.balancing.field_values import NO_FIELD, UNREADABLE, boolean, integer
from penstock.balancing.fields import Fields, StreamOptions
from penstock.balancing.forms import MalformedAsk

# The members of a body that tell a length, and what they tell.
AnswerLimits = tuple[tuple[str, int], ...]

NULL: Final = -1
MIN_TOKENS: Final = "min_tokens"
# What completions get whose body has no `max_tokens`, in vLLM as at OpenAI. (With null they get as
# much as there is room for.)
COMPLETION_TOKENS: Final = 16
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def answer_limits(api: Api, fields: Fields) -> AnswerLimits:
    """What a body says of the length of its answer. Raises MalformedAsk."""
    names = (*api.lengths, MIN_TOKENS) if api.choices else api.lengths
    given: list[tuple[str, int]] = []
    for name in names:
        raw = getattr(fields, name)
        if raw is not NO_FIELD:
            tokens = integer(name, raw)
            given.append((name, NULL if tokens is None else max(0, tokens)))
    return tuple(given)


def cap_edits(path: str, limits: AnswerLimits, most: int) -> tuple[tuple[bytes, bytes], ...]:
    """The edits of a body after which its answer has at most so many tokens (of each choice).

    Empty: it has no more anyway.
    """
    read = api_of(path).lengths
    if not read:
        return ()
    nulls = path in (COMPLETIONS, GENERATE)
    value = b"%d" % most
    edits: list[tuple[bytes, bytes]] = []
    bound = False
    for name, tokens in limits:
        if tokens == NULL and not (nulls and name in read):
            continue
        if tokens > most or tokens == NULL:
            edits.append((name.encode(), value))
        # Some servers go on to the next member after a 0.
        bound = bound or (name in read and (tokens > 0 or name == read[-1]))
    if not bound:  # other servers than vLLM may take an absent limit of completions for none
        unsaid = min(most, COMPLETION_TOKENS) if path == COMPLETIONS else most
        edits.append((read[-1].encode(), b"%d" % unsaid))
    return tuple(edits)


def within(options: bytes, edits: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """`sampling_params` with these edits in them."""
    fields = _object.decode(options)
    for name, value in edits:
        fields[name.decode()] = msgspec.Raw(value)
    return msgspec.json.encode(fields)


_ASKED: Final = b'{"include_usage":true}'
# Longer ones come from no honest client.
OPTIONS_BYTES_MAX: Final = 1_024
ODD_OPTIONS: Final = f"`stream_options` must be an object of at most {OPTIONS_BYTES_MAX} bytes."

_options = msgspec.json.Decoder(StreamOptions)


def usage_options(raw: msgspec.Raw) -> bytes:
    """The `stream_options` to send in place of the client's. Empty: it asks for usage itself.

    Metrics, estimators and budgets need the backend's usage. The relay hides its chunk from a
    client that did not ask for it.

    Raises MalformedAsk.
    """
    given = bytes(raw)
    if given in (b"", b"null"):
        return _ASKED
    try:
        options = _options.decode(given if len(given) <= OPTIONS_BYTES_MAX else b"")
        fields = _object.decode(given)
    except (*UNREADABLE, RecursionError):
        raise MalformedAsk(ODD_OPTIONS) from None
    continuous = boolean("stream_options.continuous_usage_stats", options.continuous_usage_stats)
    if boolean("stream_options.include_usage", options.include_usage):
        return b""
    fields["include_usage"] = msgspec.Raw(b"true")
    if continuous:  # usage in every chunk could not be hidden
        fields["continuous_usage_stats"] = msgspec.Raw(b"false")
    return msgspec.json.encode(fields)
