"""OpenAI chat and completions: `data:` chunks with `choices`, then `data: [DONE]`.

vLLM sends its 200 before it has scheduled the request, so an error event can be
the first and only one; it is written with spaces after its colons, hence parsed
and not matched by bytes.
"""

from typing import ClassVar

import msgspec

from proxy.dialects.dialect import QUIET, TOKEN, UNREADABLE, Dialect, Event, Sign, payload, usage_of


class _Choice(msgspec.Struct):
    index: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Error(msgspec.Struct):
    code: int = 500


_error = msgspec.json.Decoder(_Error)
_chunk = msgspec.json.Decoder(_Chunk)


class Choices(Dialect):
    """Chat and completions."""

    asks_usage: ClassVar[bool] = True
    ordinary: ClassVar[bytes] = b'"finish_reason":null'
    has_end: ClassVar[bool] = True

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
            return Event(Sign.TOKEN, chunk.choices[0].index, usage)
        return Event(Sign.USAGE if usage else Sign.TOKEN, 0, usage)


def _status_of(error: msgspec.Raw) -> int:
    try:
        return _error.decode(error).code
    except UNREADABLE:
        return 500
