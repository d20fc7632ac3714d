"""What a classifier has said, and whether it may be asked more.

Nobody pays for another: each client has a share of the memory for labels and of the questions that
are asked at once. Its labels are its own, so that nobody learns by the time of an answer what
others have asked. They are kept by a keyed hash of the text, not by the text.

What a classifier is asked about: the text of the last user message, cut to its two ends.

A conversation may have megabytes, and hardly any of it is the question. So only its end is read, in
one turn of the loop: about a millisecond, whatever is in it. A question that begins before is none.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final

import msgspec

from penstock.balancing.fair_table import FairTable
from penstock.balancing.field_values import NO_FIELD, UNREADABLE
from penstock.balancing.fields import Fields
from penstock.balancing.outline import LARGE_BYTES

KEPT_S: Final = 600.0
# Questions at once, of all clients and of one. At 10 ms each that is 6,400 a second, and 1,600.
AT_ONCE: Final = 64
AT_ONCE_OF_ONE: Final = 16
# After this many failures in a row, a client's questions are not asked for HELD_UP_S. Then one at a
# time is. Failures are counted for each client, because its own text may make the classifier fail.
IN_A_ROW: Final = 5
HELD_UP_S: Final = 5.0
# The most clients whose failures are counted. One that is forgotten is asked for again.
CLIENTS_MAX: Final = 1_024
LABEL_CHARS_MAX: Final = 63
_MARK_BYTES: Final = 16


class _Said(msgspec.Struct):
    label: str


_said: Final = msgspec.json.Decoder(_Said)


def label_in(body: bytes) -> str | None:
    """The label in an answer. None: there is none, or it is too long for one."""
    try:
        label = _said.decode(body).label
    except (*UNREADABLE, RecursionError):
        return None
    return label if 0 < len(label) <= LABEL_CHARS_MAX else None


class _Run:
    """A client's failures since its last answer. While it is held up, one question `tries`."""

    __slots__ = ("failures", "tries", "until_s")

    def __init__(self) -> None:
        self.failures = 0
        self.until_s = 0.0
        self.tries = False

    @property
    def holds(self) -> bool:
        return self.failures >= IN_A_ROW


class Labels:
    """The labels that are remembered, and the questions that are asked now."""

    def __init__(self, entries: int, key: bytes) -> None:
        """`key` is secret: who knows it can tell which texts were asked about."""
        self._key = key
        self._known: FairTable[tuple[str, float]] = FairTable(entries)
        self._asking: dict[str, int] = {}
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self.asking = 0

    def mark(self, question: bytes) -> bytes:
        """What stands for a question."""
        return blake2b(question, key=self._key, digest_size=_MARK_BYTES).digest()

    def find(self, client: str, mark: bytes, now_s: float) -> str | None:
        """The label that is remembered. None: none is."""
        found = self._known.use(client, mark)
        return found[0] if found is not None and now_s < found[1] else None

    def begin(self, client: str, now_s: float) -> bool:
        """Begin a question, which `end` ends. False: it may not be asked now."""
        own = self._asking.get(client, 0)
        if self.asking >= AT_ONCE or own >= AT_ONCE_OF_ONE:
            return False
        run = self._runs.get(client)
        if run is not None and run.holds:
            if run.tries or now_s < run.until_s:
                return False
            run.tries = True
        self._asking[client] = own + 1
        self.asking += 1
        return True

    def end(self, client: str, mark: bytes, label: str | None, now_s: float) -> bool:
        """A question has ended. `label` is None if it failed, which is not remembered.

        Returns whether its client is held up now.
        """
        self.asking -= 1
        left = self._asking.pop(client) - 1
        if left:
            self._asking[client] = left
        if label is not None:
            self._runs.pop(client, None)
            self._known.put(client, mark, (label, now_s + KEPT_S))
            return False
        run = self._runs.get(client)
        if run is None:
            run = self._runs[client] = _Run()
            if len(self._runs) > CLIENTS_MAX:
                self._runs.popitem(last=False)
        run.failures += 1
        run.tries, run.until_s = False, now_s + HELD_UP_S
        return run.holds


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
