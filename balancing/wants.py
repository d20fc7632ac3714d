"""What a request asks for beyond text, read for routes only.

The words are those of four APIs, and of vLLM's own members. A member that is there and says nothing
(`null`, an empty list, `"none"`) asks for nothing. All of it is what a client says: a route that
needs tools sees that tools are offered to the model, not that the model will use them.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, get_args

import msgspec

from penstock.balancing.field_values import NO_FIELD, UNREADABLE
from penstock.balancing.fields import CLIPPED_BYTES, Fields
from penstock.balancing.outline import SLICE_BYTES, Steps
from penstock.conf.route_match import Need

NEEDS: Final[tuple[str, ...]] = get_args(Need)
_BITS: Final[dict[str, int]] = {name: 1 << place for place, name in enumerate(NEEDS)}


def needs_of(names: Iterable[str]) -> int:
    """The bits of these names."""
    bits = 0
    for name in names:
        bits |= _BITS[name]
    return bits


def named(bits: int) -> list[str]:
    """The names of these bits."""
    return [name for name in NEEDS if bits & _BITS[name]]


NAME_BYTES_MAX: Final = 512  # a longer user or effort is not read
# The parts of a message that hold media, by what they hold. As raw bytes: a quote inside JSON text
# is escaped, so that text cannot look like one of these.
_MEDIA: Final = (
    ("images", re.compile(rb'"(?:image_url|input_image|image|image_pil|image_embeds)"')),
    ("audio", re.compile(rb'"(?:input_audio|audio_url|audio)"')),
    ("video", re.compile(rb'"(?:video_url|input_video|video)"')),
)
_MEDIA_NAME_BYTES: Final = 16  # more than any of these names; slices overlap by it
_NOTHING: Final = (b"", b"null", b"[]", b"{}", b"false", b'""')
_NOTHING_BYTES: Final = max(map(len, _NOTHING))
_PLAIN_FORMATS: Final = (None, "text")
_NO_REASONING: Final = (None, "", "none", "disabled", "off")


class WantedFields(Fields):
    """Fields that only routes read."""

    functions: msgspec.Raw = NO_FIELD
    response_format: msgspec.Raw = NO_FIELD
    text: msgspec.Raw = NO_FIELD
    output_format: msgspec.Raw = NO_FIELD
    output_config: msgspec.Raw = NO_FIELD
    structured_outputs: msgspec.Raw = NO_FIELD
    guided_json: msgspec.Raw = NO_FIELD
    guided_regex: msgspec.Raw = NO_FIELD
    guided_choice: msgspec.Raw = NO_FIELD
    guided_grammar: msgspec.Raw = NO_FIELD
    reasoning: msgspec.Raw = NO_FIELD
    reasoning_effort: msgspec.Raw = NO_FIELD
    thinking: msgspec.Raw = NO_FIELD
    include: msgspec.Raw = NO_FIELD
    user: msgspec.Raw = NO_FIELD
    safety_identifier: msgspec.Raw = NO_FIELD


class _Kind(msgspec.Struct):
    """An object that says what it is: `{"type": ...}`, `{"format": {"type": ...}}`, an effort."""

    type: object = None
    effort: object = None
    format: object = None


class Wants:
    """What one request asks for. `needs`: bits, as `needs_of` makes them."""

    __slots__ = ("conversation", "effort", "needs", "user")

    def __init__(self, needs: int = 0, effort: str | None = None, user: str | None = None) -> None:
        self.needs = needs
        self.effort = effort
        self.user = user
        # For the classifier, which nobody else asks. It refers to the body, so it is soon dropped.
        self.conversation: memoryview | None = None


def wants_of(fields: Fields) -> Wants:
    """What the fields ask for, but for media, which only the parts of the prompt tell."""
    assert isinstance(fields, WantedFields)
    effort, reasons = _reasoning(fields)
    needs = []
    if _given(fields.tools) or _given(fields.functions):
        needs.append("tools")
    if _structured(fields):
        needs.append("structured_output")
    if _logprobs(fields):
        needs.append("logprobs")
    if reasons:
        needs.append("reasoning")
    user = _text(fields.user) or _text(fields.safety_identifier)
    return Wants(needs_of(needs), effort, user)


def media_needs(parts: Sequence[bytes | memoryview]) -> Steps[int]:
    """The kinds of media that parts of a prompt name, as bits of needs."""
    left = dict(_MEDIA)
    for part in parts:
        for at in range(0, len(part), SLICE_BYTES):
            until = at + SLICE_BYTES + _MEDIA_NAME_BYTES
            left = {name: each for name, each in left.items() if not each.search(part, at, until)}
            if not left:
                return needs_of(dict(_MEDIA))
            yield
    return needs_of(name for name, _ in _MEDIA if name not in left)


def _structured(fields: WantedFields) -> bool:
    """Whether the answer must follow a schema, a pattern or a grammar."""
    for raw in (
        fields.structured_outputs,
        fields.guided_json,
        fields.guided_regex,
        fields.guided_choice,
        fields.guided_grammar,
    ):
        if _given(raw):
            return True
    for raw in (fields.response_format, fields.output_format):
        if _is_long(raw) or _kind(raw).type not in _PLAIN_FORMATS:
            return True
    for raw in (fields.text, fields.output_config):
        if _is_long(raw) or _inner(raw).type not in _PLAIN_FORMATS:
            return True
    return False


def _logprobs(fields: WantedFields) -> bool:
    """Whether the answer must have probabilities. Completions give a number, chats say true."""
    logprobs = fields.logprobs
    if _given(logprobs):
        return True
    return _given(fields.top_logprobs) or b'"message.output_text.logprobs"' in bytes(fields.include)


def _reasoning(fields: WantedFields) -> tuple[str | None, bool]:
    """The effort of reasoning that is asked for, and whether any is."""
    effort = _text(fields.reasoning_effort)
    if effort is None:
        for raw in (fields.reasoning, fields.output_config):
            said = _kind(raw).effort
            if isinstance(said, str):
                effort = said
                break
    thinks = _kind(fields.thinking).type in ("enabled", "adaptive")
    return effort, thinks or effort not in _NO_REASONING


def _given(raw: msgspec.Raw) -> bool:
    return raw is not NO_FIELD and _begin(raw, _NOTHING_BYTES + 1) not in _NOTHING


def _begin(raw: msgspec.Raw, size_bytes: int) -> bytes:
    """The first bytes of a value: all of it may be a whole body."""
    return bytes(memoryview(raw)[:size_bytes])


def _is_long(raw: msgspec.Raw) -> bool:
    """Whether it is cut where reading ends. Only a schema is so long."""
    return len(bytes(raw)) >= CLIPPED_BYTES


def _kind(raw: msgspec.Raw) -> _Kind:
    """What an object says of itself. Nothing, if it is none."""
    value = bytes(raw)
    if not value.startswith(b"{") or len(value) >= CLIPPED_BYTES:
        return _Kind()
    try:
        return msgspec.json.decode(value, type=_Kind)
    except (*UNREADABLE, RecursionError):
        return _Kind()


def _inner(raw: msgspec.Raw) -> _Kind:
    found = _kind(raw).format
    return _Kind(type=found.get("type")) if isinstance(found, dict) else _Kind()


def _text(raw: msgspec.Raw) -> str | None:
    """A short text, or None for anything else."""
    value = bytes(raw)
    if not value.startswith(b'"') or len(value) > NAME_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(value, type=str) or None
    except UNREADABLE:
        return None
