"""What every dialect can answer. By itself it is the dialect of plain JSON (pooling and others)."""

import re
from enum import Enum
from typing import ClassVar, Final, NamedTuple

import msgspec
import orjson

from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps
from penstock.proxy.dialects.members import Counts, Meta, Whole
from penstock.proxy.errors.error import PenstockError


class Sign(Enum):
    """What an event of a stream tells the relay."""

    QUIET = "quiet"  # a comment, a ping, or a preamble sent before the engine has done anything
    TOKEN = "token"  # generated output  # noqa: S105
    USAGE = "usage"  # the extra chunk that only reports token counts
    ERROR = "error"  # the backend reports a failure inside the stream
    ABORT = "abort"  # the backend gave the request up, but writes it as if it were a normal end
    DONE = "done"  # the dialect's own end of the stream


class Usage:
    """Token counts as a backend reports them. `cached_tokens` None: it does not report them.

    Each answer makes one: a named tuple would take ten times as long.
    """

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens")

    def __init__(
        self, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Usage)
            and self.prompt_tokens == other.prompt_tokens
            and self.completion_tokens == other.completion_tokens
            and self.cached_tokens == other.cached_tokens
        )

    def __repr__(self) -> str:
        counts = self.prompt_tokens, self.completion_tokens, self.cached_tokens
        return f"Usage{counts}"


class Event(NamedTuple):
    """The meaning of one event.

    `choice` is the index of its choice, and `choices` are further ones. `status` is the HTTP
    status that an error stands for; below 500 the request is at fault. `response_id` names a
    response that the backend stores. `whole`: the end is valid, even without a token.
    An error that is `whole` is the API's own end of a stream.
    `opens`: it has no token, but vLLM sends it with the first one, when the prompt is prefilled.
    """

    sign: Sign
    choice: int = 0
    usage: Usage | None = None
    status: int = 500
    response_id: str | None = None
    choices: tuple[int, ...] = ()
    whole: bool = False
    opens: bool = False


# The exceptions of decoding a backend's bytes: not JSON, not UTF-8, nested too deeply.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# No request has more: 1,024 prompts of four million tokens. A count beyond it or below zero is
# nonsense.
TOKENS_MAX: Final = 2**32
# Larger JSON may have so many members that decoding it would block the loop.
LARGE_BYTES: Final = 8_192
# No server writes JSON in more lines.
LINES_MAX: Final = 1_024
# Decoding this much takes 0.7 ms at most.
SMALL_BYTES: Final = 65_536
# Inside them stands whether the backend gave the answer up, and whether there is any text.
_READ_WHOLE: Final = frozenset({"choices", "content"})
_EMPTY: Final = re.compile(rb"\s*[\[{]\s*[\]}]\s*\Z")
# An object of more bytes has a member: nobody writes so many blanks.
_EMPTY_BYTES_MAX: Final = 16
_LIST: Final = re.compile(rb"\s*\[")
NO_USAGE: Final = Usage(0, 0)
# Bytes of text that are charged as one token when the backend gives no count.
TOKEN_BYTES: Final = 4
# Only so much is searched for its text. The rest of a larger one has as much of it.
SEARCHED_BYTES_MAX: Final = 65_536
QUIET: Final = Event(Sign.QUIET)
OPENING: Final = Event(Sign.QUIET, opens=True)
TOKEN: Final = Event(Sign.TOKEN)
DONE: Final = Event(Sign.DONE)


# A member with text that was generated, in any API. Text itself has its quotes escaped.
_TEXT: Final = re.compile(
    rb'"(content|text|delta|arguments|partial_json|thinking|refusal|reasoning(?:_content)?)"'
    rb'\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)',
    re.DOTALL,
)
_NAME: Final = re.compile(rb"\s*event: ?([a-z_.]+)[\r\n]")

NOTHING: Final = frozenset({b"", b'""', b"null", b"[]", b"{}"})
_counts = msgspec.json.Decoder(Counts)


class Dialect:
    """The dialect of plain JSON answers, and the base of the streaming ones."""

    # Whether `stream_options.include_usage` exists in this API.
    asks_usage: ClassVar[bool] = False
    # Bytes that every ordinary token event holds exactly once and no other event holds. So one
    # count tells whether a read has only such events. Text cannot fake it: it has quotes, which
    # are escaped inside JSON text, or a line end, which is escaped, too.
    ordinary: ClassVar[bytes] = b""
    # Whether a whole stream ends with an event of its own (DONE).
    has_end: ClassVar[bool] = False
    # Whether the end of a stream always reports usage.
    end_tells: ClassVar[bool] = False
    # The member of a whole answer that has its token counts.
    counts_in: ClassVar[bytes] = b"usage"
    # Whether a full vLLM cuts a stream without an error event.
    full_is_cut: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, event: bytes) -> Event:
        """The meaning of one event of a stream."""
        return TOKEN if payload(event) else QUIET

    def text(self, event: bytes) -> tuple[int, int]:
        """The bytes of new text in an event of a token, and where the last of them end."""
        return text_of(event)

    def says_nothing(self, event: bytes) -> bool:
        """Whether an event of a token has nothing to show: perhaps there was no token."""
        return False

    def read_beginning(self, beginning: bytes) -> Event:
        """The meaning of an event of which only the beginning is known. `status` 0: that of an
        error stands behind it."""
        return TOKEN

    def usage(self, whole: Whole) -> Usage | None:
        """The token counts of a whole JSON answer. None when it has none."""
        return usage_of(whole.usage)

    def serves(self, whole: Whole) -> bool:
        """Whether a whole JSON answer without token counts holds anything that was asked for."""
        return bytes(whole.error) in NOTHING and bytes(whole.object) != b'"error"'

    def response_id(self, whole: Whole) -> str | None:
        """The id of the stored response, if a whole JSON answer is one. Otherwise None."""
        return None

    def goes_on(self, whole: Whole) -> bool:
        """Whether a whole JSON answer tells of a response that is still made."""
        return False

    def id_at_beginning(self, beginning: bytes) -> str | None:
        """The id of the stored response, if only the beginning of the answer is known."""
        return None

    def aborted(self, whole: Whole) -> bool:
        """Whether a whole JSON answer says that the backend gave the request up."""
        return False

    def error_body(self, error: PenstockError) -> bytes:
        """An error as a whole JSON answer."""
        return orjson.dumps(
            {
                "error": {
                    "message": str(error),
                    "type": error.kind,
                    "param": error.param,
                    "code": error.code,
                }
            }
        )

    def error_event(self, error: PenstockError) -> bytes:
        """An error as an event of a stream, in the form on which the API's SDK raises."""
        return self.wrapped_error(self.error_body(error))

    def wrapped_error(self, body: bytes) -> bytes:
        """The JSON of an error, ours or a backend's, as an event of a stream."""
        return b"data: %b\n\n" % body.replace(b"\n", b" ")


def payload(event: bytes) -> bytes:
    """The data of an event, its lines joined. Empty for a comment or for too many lines.

    Reads LF, CR LF and CR.
    """
    one_line = event.find(b"\n", 0, -2) < 0 and event.find(b"\r", 0, -4) < 0
    if one_line and event.startswith(b"data: "):
        return event[6:].strip()
    if event.count(b"\n") + event.count(b"\r") > LINES_MAX:
        return b""
    lines = [
        line[5:].strip()
        for line in event.replace(b"\r", b"\n").split(b"\n")
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines)


def name_of(beginning: bytes) -> bytes:
    """The name at the beginning of an event, empty if it has none."""
    match = _NAME.match(beginning)
    return match.group(1) if match is not None else b""


def status_of(code: int) -> int:
    """The status that an error event stands for. An invalid one counts as the server's fault."""
    return code if 400 <= code <= 599 else 500


def text_of(data: bytes) -> tuple[int, int]:
    """The bytes of generated text in an event or answer, and where the last of them end."""
    size_bytes = end = 0
    before = b""
    for match in _TEXT.finditer(data, 0, SEARCHED_BYTES_MAX):
        name, text = match.groups()
        end = match.end()
        if text != before or not name.startswith(b"reasoning"):  # some give it by both names
            size_bytes += len(text)
        before = text
    if len(data) > SEARCHED_BYTES_MAX:
        return size_bytes * len(data) // SEARCHED_BYTES_MAX, len(data)
    return size_bytes, end


def usage_of(raw: msgspec.Raw) -> Usage | None:
    """Read a `usage` object of any API. None when it is absent, null or odd."""
    value = bytes(raw)
    if not value or value == b"null":
        return None
    try:
        counts = _counts.decode(value)
    except UNREADABLE:
        return None
    details = counts.prompt_tokens_details or counts.input_tokens_details
    cached = counts.cache_read_input_tokens
    if cached is None and details is not None:
        cached = details.cached_tokens
    prompt = counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens
    if prompt is not None and counts.cache_read_input_tokens is not None:
        # Anthropic's input tokens leave out cached ones.
        prompt += counts.cache_read_input_tokens + (counts.cache_creation_input_tokens or 0)
    completion = counts.completion_tokens or counts.output_tokens or 0
    if prompt is None or not 0 <= prompt < TOKENS_MAX or not 0 <= completion < TOKENS_MAX:
        return None
    if cached is not None and not 0 <= cached <= prompt:
        return None
    return Usage(prompt, completion, cached)


def says(part: dict[str, msgspec.Raw], *silent: str) -> bool:
    """Whether any member other than the `silent` ones has content."""
    return any(bytes(value) not in NOTHING for name, value in part.items() if name not in silent)


_meta = msgspec.json.Decoder(Meta | None)


class Embed(Dialect):
    """The embed API."""

    counts_in: ClassVar[bytes] = b"meta"

    def usage(self, whole: Whole) -> Usage | None:
        try:
            meta = _meta.decode(bytes(whole.meta) or b"null")
        except UNREADABLE:
            return None
        units = meta.billed_units if meta is not None else None
        if units is None:
            return None
        tokens = (units.input_tokens or 0) + (units.image_tokens or 0)
        return Usage(tokens, 0) if 0 < tokens < TOKENS_MAX else None


_whole = msgspec.json.Decoder(Whole)
_any = msgspec.json.Decoder(msgspec.Raw)


def whole_of(body: bytes) -> Whole | None:
    """The members of a small answer that tell something about it.

    None if it is no JSON object or list, or an empty one.
    """
    try:
        if body.startswith(b"{") and len(body) > _EMPTY_BYTES_MAX:  # the usual answer
            return _whole.decode(body)
        if _EMPTY.match(body):
            return None
        if _LIST.match(body):
            _any.decode(body)
            return Whole()
        return _whole.decode(body)
    except UNREADABLE:
        return None


def reading_whole(body: bytes) -> Steps[Whole | None]:
    """The same of an answer of any size, in steps: a million bytes of small objects take 10 ms."""
    if len(body) <= SMALL_BYTES:
        return whole_of(body)
    if _LIST.match(body):
        return Whole()
    try:
        # Many answers wait for their turns at once, and only one of each is counted: no copies.
        return (yield from members(body, _whole, _READ_WHOLE, copies=False))
    except NoObject:
        return None
