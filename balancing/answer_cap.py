"""How long an answer may become: what a body says of that, and the edits that make it less.

Each API has its own members. Each that is larger is lowered, also the least that a client asks for.
If the one that every server knows is not there, it is added. All other bytes stay.
"""

from typing import Final

import msgspec

from penstock.balancing.apis import COMPLETIONS, GENERATE, Api, api_of
from penstock.balancing.field_values import NO_FIELD, integer
from penstock.balancing.fields import Fields

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
