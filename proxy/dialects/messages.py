"""Anthropic messages: named events from `message_start` to `message_stop`; no [DONE].

`message_start` comes before the engine has done anything, and `ping` at any time. So neither
commits. An end without a token does not commit either: vLLM says this of a request that it gave up
in the queue. The SDK ignores OpenAI's form of errors. An error must be `event: error` with `type`
beside it.
"""

from typing import ClassVar, Final

import msgspec
import orjson

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
    name_of,
    payload,
    says,
    usage_of,
)
from penstock.proxy.dialects.members import MessagesEvent, Whole
from penstock.proxy.errors.error import PenstockError

_blocks = msgspec.json.Decoder(list[dict[str, msgspec.Raw]] | None)
_typed = msgspec.json.Decoder(MessagesEvent)

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
        if typed.type == "message_start":
            return OPENING
        if typed.type == "ping":
            return QUIET
        if typed.type == "message_stop":
            return DONE
        if typed.type == "error":
            # vLLM's text is that of a failed conversion. It has the real error at its end.
            return Event(Sign.ERROR, status=503 if b"'code': 503}" in data else 500)
        usage = usage_of(typed.usage)  # only message_delta has all counts, also the prompt's
        if typed.type == "message_delta":
            if typed.delta and bytes(typed.delta.stop_reason) == b"null":
                return Event(Sign.ABORT)
            if usage and not usage.completion_tokens:
                return Event(Sign.QUIET, 0, usage)
        return Event(Sign.TOKEN, 0, usage)

    def read_beginning(self, beginning: bytes) -> Event:
        name = name_of(beginning)
        if name == b"error":
            return Event(Sign.ERROR)
        return QUIET if name == b"message_start" else TOKEN

    def serves(self, whole: Whole) -> bool:
        content = bytes(whole.content)
        if content in NOTHING or len(content) > LARGE_BYTES:
            return content not in NOTHING
        try:
            return any(says(block, "type") for block in _blocks.decode(content) or ())
        except UNREADABLE:
            return False

    def aborted(self, whole: Whole) -> bool:
        """vLLM gives a stop reason, unless neither the model nor the client caused the stop."""
        return bytes(whole.type) == b'"message"' and bytes(whole.stop_reason) in (b"", b"null")

    def error_body(self, error: PenstockError) -> bytes:
        kind = _TYPE_OF_STATUS.get(error.status)
        if kind is None:
            kind = "api_error" if error.status >= 500 else "invalid_request_error"
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": str(error)}})

    def wrapped_error(self, body: bytes) -> bytes:
        return b"event: error\n%b" % super().wrapped_error(body)
