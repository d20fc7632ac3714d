"""OpenAI chat and completions: `data:` chunks with `choices`, then `data: [DONE]`.

Chat's first chunk names the role and comes with the first token, so it waits for it:
a request that is given up in the queue gets that chunk too, then `abort`.
vLLM sends its 200 before it has scheduled the request, so an error event can be
the first and only one; it is written with spaces after its colons, hence parsed
and not matched by bytes.
"""

from typing import ClassVar, Final

import msgspec

from proxy.dialects.dialect import QUIET, TOKEN, UNREADABLE, Dialect, Event, Sign, payload, usage_of


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: msgspec.Raw = msgspec.Raw()
    delta: msgspec.Raw = msgspec.Raw()


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Error(msgspec.Struct):
    code: int = 500


_error = msgspec.json.Decoder(_Error)
_chunk = msgspec.json.Decoder(_Chunk)
_delta = msgspec.json.Decoder(dict[str, msgspec.Raw])

_ABORT: Final = b'"abort"'
_NOTHING: Final = frozenset({b'""', b"null"})


class Choices(Dialect):
    """Chat and completions."""

    asks_usage: ClassVar[bool] = True
    ordinary: ClassVar[bytes] = b'"finish_reason":null'
    has_end: ClassVar[bool] = True

    def aborted(self, body: bytes) -> bool:
        if _ABORT not in body:
            return False
        try:
            chunk = _chunk.decode(body)
        except UNREADABLE:
            return False
        return any(bytes(choice.finish_reason) == _ABORT for choice in chunk.choices or ())

    def read(self, event: bytes) -> Event:
        data = payload(event)
        if not data:
            return QUIET
        if data == b"[DONE]":
            return Event(Sign.DONE)
        try:
            chunk = _chunk.decode(data)
        except UNREADABLE:
            return TOKEN  # not ours to judge
        if bytes(chunk.error) not in (b"", b"null"):
            return Event(Sign.ERROR, status=_status_of(chunk.error))
        usage = usage_of(chunk.usage)
        if chunk.choices:
            return Event(_sign_of(chunk.choices[0]), chunk.choices[0].index, usage)
        return Event(Sign.USAGE if usage else Sign.TOKEN, 0, usage)


def _sign_of(choice: _Choice) -> Sign:
    finish = bytes(choice.finish_reason)
    if finish == _ABORT:
        return Sign.ABORT
    return Sign.QUIET if finish in (b"", b"null") and _only_role(choice.delta) else Sign.TOKEN


def _only_role(delta: msgspec.Raw) -> bool:
    """Chat's first chunk: it says who speaks, and nothing yet."""
    if b'"role"' not in bytes(delta):
        return False
    try:
        members = _delta.decode(delta)
    except UNREADABLE:
        return False
    return all(name == "role" or bytes(value) in _NOTHING for name, value in members.items())


def _status_of(error: msgspec.Raw) -> int:
    try:
        return _error.decode(error).code
    except UNREADABLE:
        return 500
