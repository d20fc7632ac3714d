"""What a classifier is asked about: the text of the last user message, cut to its two ends.

A conversation may have megabytes, and hardly any of it is the question. So only its end is read, in
one turn of the loop: about a millisecond, whatever is in it. A question that begins before is none.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from penstock.balancing.field_values import NO_FIELD, UNREADABLE
from penstock.balancing.fields import Fields
from penstock.balancing.outline import LARGE_BYTES

# How much is read of the end of a conversation.
READ_BYTES: Final = LARGE_BYTES
# The most braces in it: each may begin an object, which becomes one of Python's. Where there are
# more, less is read.
BRACES_MAX: Final = 8_192
DENSE_BYTES: Final = READ_BYTES // 8
# Of so many messages, and of so many parts at each end of one, the text is looked at.
MESSAGES_MAX: Final = 64
PARTS_MAX: Final = 64
# Between the two ends of a long text.
GAP: Final = "\n[...]\n"
# The member that holds what its user asks, by the path's API.
CONVERSATIONS: Final = {
    "/v1/chat/completions": "messages",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
}
# Where a message begins that has its role first, as all SDKs write it. A quote inside JSON text is
# escaped, so that text cannot look like one.
_MESSAGE: Final = re.compile(rb'\{\s{0,64}"role"\s{0,64}:')
_TRIES_MAX: Final = 2
# A character in JSON text has at most so many bytes: two escapes, as "\ud83d\ude00".
_CHAR_BYTES_MAX: Final = 12
_USER: Final = b'"user"'
_TEXTS: Final = (b"", b'"text"', b'"input_text"')


class _Message(msgspec.Struct):
    role: msgspec.Raw = NO_FIELD
    content: msgspec.Raw = NO_FIELD


class _Part(msgspec.Struct):
    type: msgspec.Raw = NO_FIELD
    text: msgspec.Raw = NO_FIELD


_messages: Final = msgspec.json.Decoder(list[_Message | str])
_parts: Final = msgspec.json.Decoder(list[_Part])
_string: Final = msgspec.json.Decoder(str)


def conversation_of(path: str, fields: Fields) -> memoryview | None:
    """The JSON in which its user asks. None: the path's API has no such member, or it is left out.

    It refers to the body: whoever keeps it keeps that.
    """
    name = CONVERSATIONS.get(path)
    raw = getattr(fields, name) if name is not None else NO_FIELD
    return memoryview(raw) if raw is not NO_FIELD else None


def question_of(conversation: memoryview, text_bytes: int) -> str:
    """The text of its last user message, at most so many bytes and a gap. Empty: none was found."""
    one_text = bytes(conversation[:1]) == b'"'
    if one_text and len(conversation) > READ_BYTES:
        return _both_ends(conversation[1:-1], text_bytes // 2)
    for raw in (bytes(conversation),) if one_text else _said_by_user(conversation):
        if text := _text_of(raw):
            return _cut(text, text_bytes)
    return ""


def _said_by_user(conversation: memoryview) -> Iterator[bytes]:
    """What the user has said as JSON, the last first."""
    end = bytes(conversation[-READ_BYTES:])
    if end.count(b"{") > BRACES_MAX:
        end = end[-DENSE_BYTES:]
    if end.count(b"{") > BRACES_MAX:
        return
    messages = _last_messages(end, whole=len(end) == len(conversation))
    for each in islice(reversed(messages), MESSAGES_MAX):
        if isinstance(each, str):  # one of several prompts
            yield msgspec.json.encode(each)
        elif bytes(each.role) == _USER:
            yield bytes(each.content)


def _last_messages(end: bytes, *, whole: bool) -> Sequence[_Message | str]:
    """The messages in the end of a list, from the first that begins there."""
    if whole:
        return _list_of(end)
    for match in islice(_MESSAGE.finditer(end), _TRIES_MAX):
        found = _list_of(b"[" + end[match.start() :])
        if found:
            return found
    return []


def _list_of(text: bytes) -> Sequence[_Message | str]:
    try:
        return _messages.decode(text)
    except (*UNREADABLE, RecursionError):
        return []


def _text_of(content: bytes) -> str:
    """The text of one message. Empty: it has none, such as a tool's result."""
    try:
        if content[:1] == b'"':
            return _string.decode(content)
        parts = _parts.decode(content)
        if len(parts) > 2 * PARTS_MAX:
            parts = parts[:PARTS_MAX] + parts[-PARTS_MAX:]
        texts = [each.text for each in parts if bytes(each.type) in _TEXTS]
        return "\n".join([_string.decode(text) for text in texts if text is not NO_FIELD])
    except (*UNREADABLE, RecursionError):
        return ""


def _cut(text: str, text_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= text_bytes:
        return text
    half = text_bytes // 2
    return encoded[:half].decode(errors="ignore") + GAP + encoded[-half:].decode(errors="ignore")


def _both_ends(inner: memoryview, half: int) -> str:
    """The two ends of a very long JSON string without its quotes. It is not read in between."""
    begin, end = bytes(inner[:half]), bytes(inner[-half:])
    begins = [begin[: len(begin) - cut] for cut in range(_CHAR_BYTES_MAX)]
    ends = [end[cut:] for cut in range(_CHAR_BYTES_MAX)]
    first, last = _first_readable(begins), _first_readable(ends)
    return first + GAP + last if first and last else ""


def _first_readable(pieces: list[bytes]) -> str:
    """The longest piece that cuts no character."""
    for piece in pieces:
        try:
            return _string.decode(b'"%b"' % piece)
        except UNREADABLE:
            continue
    return ""
