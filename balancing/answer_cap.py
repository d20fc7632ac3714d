"""How long an answer may become: what a body says of that, and the edits that make it less.

Each API has its own field. Of those that are there, each that is larger is lowered, whatever reads
it. If the API's own is not there, it is added. All other bytes stay.
"""

from typing import Final

import msgspec

from penstock.balancing.fields import NO_FIELD, Fields, whole_number

# The fields of a body that tell a length, and what they tell.
AnswerLimits = tuple[tuple[bytes, int], ...]

NULL: Final = -1
# Larger than all that can be read, such as a number of 30 digits: backends take that, too.
HUGE: Final = 2**63
DIGITS_READ: Final = 18
MIN_TOKENS: Final = b"min_tokens"
# The fields that each API reads. The last one is added where none is given: servers of all ages
# know it.
_CHAT: Final = (b"max_completion_tokens", b"max_tokens")
_READ: Final = {
    "/v1/chat/completions": _CHAT,
    "/v1/chat/completions/batch": _CHAT,
    "/v1/completions": (b"max_tokens",),
    "/v1/responses": (b"max_output_tokens",),
    "/v1/messages": (b"max_tokens",),
}
# What completions get whose body has no `max_tokens`, in vLLM as at OpenAI. (With null they get as
# much as there is room for.)
_COMPLETIONS: Final = "/v1/completions"
COMPLETION_TOKENS: Final = 16
_integer = msgspec.json.Decoder(int)


def answer_limits(fields: Fields) -> AnswerLimits:
    """What a body says of the length of its answer."""
    given = (
        (b"max_completion_tokens", fields.max_completion_tokens),
        (b"max_tokens", fields.max_tokens),
        (b"max_output_tokens", fields.max_output_tokens),
        (MIN_TOKENS, fields.min_tokens),
    )
    return tuple([(name, _tokens(raw)) for name, raw in given if raw is not NO_FIELD])


def cap_edits(path: str, limits: AnswerLimits, most: int) -> tuple[tuple[bytes, bytes], ...]:
    """The edits of a body after which its answer has at most so many tokens (of each choice).

    Empty: it has no more anyway, or it cannot be made to: a client that asks for more at least
    (`min_tokens`) would get an error.
    """
    read = _READ.get(path)
    if read is None:
        return ()
    value = b"%d" % most
    edits: list[tuple[bytes, bytes]] = []
    bound = False
    for name, tokens in limits:
        if name == MIN_TOKENS:
            if tokens > most:
                return ()
            continue
        if tokens == NULL and (path != _COMPLETIONS or name not in read):
            continue
        if tokens > most or tokens == NULL:
            edits.append((name, value))
        # Some servers go on to the next field after a 0.
        bound = bound or (name in read and (tokens > 0 or name == read[-1]))
    if not bound and (path != _COMPLETIONS or most < COMPLETION_TOKENS):
        edits.append((read[-1], value))
    return tuple(edits)


def _tokens(raw: msgspec.Raw) -> int:
    """The number that a field tells. What no backend takes for one is 0: that backend says so."""
    value = bytes(raw)
    if value == b"null":
        return NULL
    number: int | None
    try:
        number = _integer.decode(value)
    except (msgspec.DecodeError, ValueError):
        number = whole_number(msgspec.Raw(value))
    if number is None:  # not a whole one, or of more digits than are read
        return HUGE if len(value) > DIGITS_READ and value.strip(b'" +')[:1].isdigit() else 0
    return max(0, min(number, HUGE))
