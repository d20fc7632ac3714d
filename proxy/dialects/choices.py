"""OpenAI chat and completions: `data:` chunks with `choices`, then `data: [DONE]`.

Chat's first chunk names the role. It is held until the first token, because a request that is
given up in the queue gets this chunk, too, and then `abort`.
vLLM sends its 200 before it has scheduled the request. So an error event can be the first and only
event. It is written with spaces after its colons, so it is parsed and not matched by bytes.
"""

import re
from typing import ClassVar, Final

import msgspec

from penstock.proxy.dialects.dialect import (
    DONE,
    LARGE_BYTES,
    NOTHING,
    OPENING,
    QUIET,
    TOKEN,
    UNREADABLE,
    Dialect,
    Event,
    Sign,
    Usage,
    payload,
    says,
    status_of,
    usage_of,
)
from penstock.proxy.dialects.members import Choice, Chunk, Fault, LargeChunk, Said, Whole

_error = msgspec.json.Decoder(Fault)
_large = msgspec.json.Decoder(LargeChunk)
_choices = msgspec.json.Decoder(list[Choice] | None)
_said = msgspec.json.Decoder(list[Said] | None)
_chunk = msgspec.json.Decoder(Chunk)
_delta = msgspec.json.Decoder(dict[str, msgspec.Raw])

_ABORT: Final = b'"abort"'
_FAILED: Final = re.compile(rb'data: ?\{"error"')
# The most objects and lists in a large chunk or answer. With more of them it counts as output.
_OBJECTS_MAX: Final = 512
_MANY: Final = [Choice()]
_NOTHING: Final = frozenset({b'""', b"null"})


class Choices(Dialect):
    """Chat and completions."""

    asks_usage: ClassVar[bool] = True
    ordinary: ClassVar[bytes] = b'"finish_reason":null'
    has_end: ClassVar[bool] = True

    def aborted(self, whole: Whole) -> bool:
        choices = bytes(whole.choices)
        if choices.find(_ABORT) < 0:  # `in` takes ten times longer
            return False
        try:
            ended = _choices_in(choices)
        except UNREADABLE:
            return False
        return any(bytes(choice.finish_reason) == _ABORT for choice in ended or ())

    def serves(self, whole: Whole) -> bool:
        choices = bytes(whole.choices)
        if bytes(whole.error) not in NOTHING or choices in NOTHING:
            return False
        try:
            return len(choices) > LARGE_BYTES or any(map(_says, _said.decode(choices) or ()))
        except UNREADABLE:
            return False

    def read(self, event: bytes) -> Event:
        data = payload(event)
        if not data:
            return QUIET
        if data == b"[DONE]":
            return DONE
        try:
            chunk = _chunk_of(data)
        except UNREADABLE:
            return TOKEN  # not ours to judge
        if bytes(chunk.error) not in (b"", b"null"):
            return Event(Sign.ERROR, status=_status_of(chunk.error))
        usage = usage_of(chunk.usage)
        if chunk.choices:
            return _event_of(chunk.choices, usage)
        return Event(Sign.USAGE if usage else Sign.TOKEN, 0, usage)

    def says_nothing(self, event: bytes) -> bool:
        try:
            choices = _chunk_of(payload(event)).choices or ()
        except UNREADABLE:
            return False
        return choices is not _MANY and all(
            bytes(each.text) in NOTHING
            and bytes(each.token_ids) in NOTHING
            and _is_empty(each.delta)
            for each in choices
        )

    def read_beginning(self, beginning: bytes) -> Event:
        return Event(Sign.ERROR, status=0) if _FAILED.search(beginning) else TOKEN


def _chunk_of(data: bytes) -> Chunk:
    if len(data) <= LARGE_BYTES and data.count(b"{") <= _OBJECTS_MAX:
        return _chunk.decode(data)
    large = _large.decode(data)
    return Chunk(_choices_in(bytes(large.choices)), large.usage, large.error)


def _choices_in(choices: bytes) -> list[Choice] | None:
    """Decode the choices of a chunk or of a whole answer. With too many objects they are output."""
    if choices.count(b"{") + choices.count(b"[") > _OBJECTS_MAX:
        return _MANY
    decoded: list[Choice] | None = _choices.decode(choices or b"null")
    return decoded


def _event_of(choices: list[Choice], usage: Usage | None) -> Event:
    """The meaning of a chunk. vLLM's have one choice each, other servers' may have several."""
    sign, index = _sign_of(choices[0]), choices[0].index
    if len(choices) == 1:
        if index == 0 and usage is None and sign is not Sign.ABORT:  # to make one takes as long
            return OPENING if sign is Sign.QUIET else TOKEN
        return Event(sign, index, usage, opens=sign is Sign.QUIET)
    signs = [_sign_of(choice) for choice in choices]
    if Sign.ABORT in signs:
        return Event(Sign.ABORT)
    begun = [each.index for each, sign in zip(choices, signs, strict=True) if sign is Sign.TOKEN]
    if not begun:
        return Event(Sign.QUIET, 0, usage, opens=True)
    return Event(Sign.TOKEN, begun[0], usage, choices=tuple(begun[1:]))


def _sign_of(choice: Choice) -> Sign:
    finish = bytes(choice.finish_reason)
    if finish == _ABORT:
        return Sign.ABORT
    return Sign.QUIET if finish in (b"", b"null") and _only_role(choice.delta) else Sign.TOKEN


def _only_role(delta: msgspec.Raw) -> bool:
    """Whether it is chat's first chunk, which has the role and no text."""
    told = bytes(delta)
    if len(told) > LARGE_BYTES or told.find(b'"role"') < 0:  # `in` takes ten times longer
        return False
    try:
        members = _delta.decode(delta)
    except UNREADABLE:
        return False
    return all(name == "role" or bytes(value) in _NOTHING for name, value in members.items())


def _is_empty(delta: msgspec.Raw) -> bool:
    if bytes(delta) in NOTHING:
        return True
    if len(bytes(delta)) > LARGE_BYTES:
        return False
    try:
        return not says(_delta.decode(delta), "role")
    except UNREADABLE:
        return False


def _says(choice: Said) -> bool:
    if bytes(choice.text) not in NOTHING or bytes(choice.token_ids) not in NOTHING:
        return True
    return says(choice.message or {}, "role")


def _status_of(error: msgspec.Raw) -> int:
    try:
        return status_of(_error.decode(error).code)
    except UNREADABLE:
        return 500


class Transcripts(Choices):
    """Audio. A field of the form asks for usage."""

    asks_usage: ClassVar[bool] = False
    ordinary: ClassVar[bytes] = b""

    def serves(self, whole: Whole) -> bool:
        return Dialect.serves(self, whole)  # an empty text is valid: nobody may speak
