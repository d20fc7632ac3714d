"""Anthropic messages: named events from `message_start` to `message_stop`; no [DONE].

`message_start` comes before the engine has done anything and `ping` at any
time, so neither commits. The SDK ignores OpenAI's error form; an error must be
`event: error` with `type` beside it.
"""

from typing import ClassVar, Final

import msgspec
import orjson

from proxy.dialects.dialect import QUIET, TOKEN, UNREADABLE, Dialect, Event, Sign, payload, usage_of
from proxy.errors import PenstockError


class _Typed(msgspec.Struct):
    type: str = ""
    usage: msgspec.Raw = msgspec.Raw()


_typed = msgspec.json.Decoder(_Typed)

_TYPE_OF_STATUS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Messages(Dialect):
    """The messages API."""

    ordinary: ClassVar[bytes] = b'"type":"content_block_delta"'
    has_end: ClassVar[bool] = True

    def read(self, event: bytes) -> Event:
        data = payload(event)
        if not data:
            return QUIET
        try:
            typed = _typed.decode(data)
        except UNREADABLE:
            return TOKEN
        if typed.type in ("message_start", "ping"):
            return QUIET
        if typed.type == "message_stop":
            return Event(Sign.DONE)
        if typed.type == "error":
            return Event(Sign.ERROR)
        # Only message_delta has the counts, among them the prompt's.
        return Event(Sign.TOKEN, 0, usage_of(typed.usage))

    def error_body(self, error: PenstockError) -> bytes:
        kind = _TYPE_OF_STATUS.get(error.status)
        if kind is None:
            kind = "api_error" if error.status >= 500 else "invalid_request_error"
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": str(error)}})

    def wrapped_error(self, body: bytes) -> bytes:
        return b"event: error\n%b" % super().wrapped_error(body)
