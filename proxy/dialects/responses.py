"""OpenAI responses: typed events, the last is `response.completed` or its kin; no [DONE].

`response.created` and `response.in_progress` come before the engine has done
anything, so they commit nothing.
"""

from typing import ClassVar, Final

import msgspec
import orjson

from proxy.dialects.dialect import QUIET, TOKEN, UNREADABLE, Dialect, Event, Sign, payload, usage_of
from proxy.errors import PenstockError

_PREAMBLE: Final = frozenset({"response.created", "response.in_progress", "response.queued"})
_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.cancelled"})
_FAILED: Final = frozenset({"error", "response.failed"})


class _Response(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()
    object: msgspec.Raw = msgspec.Raw()
    status: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


class _Typed(msgspec.Struct):
    type: str = ""
    response: _Response | None = None


_typed = msgspec.json.Decoder(_Typed)
_response = msgspec.json.Decoder(_Response)
_string = msgspec.json.Decoder(str)


class Responses(Dialect):
    """The responses API."""

    # Of an event's own lines: its JSON may hold `metadata` and `tools` of the client's.
    ordinary: ClassVar[bytes] = b".delta\ndata: "
    has_end: ClassVar[bool] = True
    full_is_cut: ClassVar[bool] = True

    def read(self, event: bytes) -> Event:
        data = payload(event)
        if not data:
            return QUIET
        try:
            typed = _typed.decode(data)
        except UNREADABLE:
            return TOKEN
        usage = usage_of(typed.response.usage) if typed.response else None
        if typed.type in _PREAMBLE:
            if typed.type == "response.created" and typed.response:
                return Event(Sign.QUIET, response_id=_id_of(typed.response))
            return QUIET
        if typed.type in _LAST:
            return Event(Sign.DONE, 0, usage)
        if typed.type in _FAILED:
            return Event(Sign.ERROR)
        return TOKEN

    def response_id(self, body: bytes) -> str | None:
        try:
            response = _response.decode(body)
        except UNREADABLE:
            return None
        return _id_of(response) if bytes(response.object) == b'"response"' else None

    def aborted(self, body: bytes) -> bool:
        """vLLM calls an answer that it gave up "completed"; only one without a token shows."""
        if b'"output_tokens":0' not in body:
            return False
        try:
            whole = _response.decode(body)
        except UNREADABLE:
            return False
        usage = usage_of(whole.usage)
        return bytes(whole.status) == b'"completed"' and usage is not None and usage[1] == 0

    def error_event(self, error: PenstockError) -> bytes:
        """The API's flat `error` event, and `error` beside it, on which the SDK raises."""
        inner = {"code": error.code, "message": str(error), "param": error.param}
        event = {
            "type": "error",
            **inner,
            "sequence_number": 0,
            "error": {**inner, "type": error.kind},
        }
        return self.wrapped_error(orjson.dumps(event))

    def wrapped_error(self, body: bytes) -> bytes:
        return b"event: error\n%b" % super().wrapped_error(body)


def _id_of(response: _Response) -> str | None:
    try:
        return _string.decode(response.id)
    except UNREADABLE:
        return None  # an odd type, or none
