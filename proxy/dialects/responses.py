"""OpenAI responses: typed events. The last is `response.completed` or a similar one; no [DONE].

`response.created` and `response.in_progress` come before the engine has done anything. So they
commit nothing, and do not tell that the prompt is prefilled (`Event.opens`).
"""

import re
from typing import ClassVar, Final

import msgspec
import orjson

from penstock.proxy.dialects.dialect import (
    DONE,
    NOTHING,
    QUIET,
    TOKEN,
    UNREADABLE,
    Dialect,
    Event,
    Sign,
    name_of,
    payload,
    text_of,
    usage_of,
)
from penstock.proxy.dialects.members import ResponsesEvent, Whole
from penstock.proxy.errors.error import PenstockError

_PREAMBLE: Final = frozenset({"response.created", "response.in_progress", "response.queued"})
_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.cancelled"})
_ENDED_EARLY: Final = frozenset({b'"incomplete"', b'"cancelled"'})
_LATER: Final = frozenset({b'"queued"', b'"in_progress"'})  # requested in the background
_FAILED: Final = "response.failed"


_TYPE: Final = re.compile(rb'\s*data: ?\{"type": ?"([a-z_.]+)"')
_ID: Final = re.compile(rb'"response": ?\{"id": ?"([A-Za-z0-9_\-]{1,128})"')
# The first member of a whole answer, as vLLM writes it.
_FIRST_ID: Final = re.compile(rb'\s*\{"id": ?"([A-Za-z0-9_\-]{1,128})"')

_typed = msgspec.json.Decoder(ResponsesEvent)
_string = msgspec.json.Decoder(str)


class Responses(Dialect):
    """The responses API."""

    # Matches an event's own lines, because its JSON may hold the client's `metadata` and `tools`.
    ordinary: ClassVar[bytes] = b".delta\ndata: "
    has_end: ClassVar[bool] = True
    end_tells: ClassVar[bool] = True
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
                return Event(Sign.QUIET, response_id=_id_in(typed.response.id))
            return QUIET
        if typed.type in _LAST:
            # A client's cancellation and its own limit are not failures.
            status = bytes(typed.response.status) if typed.response else b""
            whole = typed.type != "response.completed" or status in _ENDED_EARLY
            return Event(Sign.DONE, 0, usage, whole=whole)
        if typed.type in ("error", _FAILED):
            return Event(Sign.ERROR, 0, usage, whole=typed.type == _FAILED)
        return TOKEN

    def text(self, event: bytes) -> tuple[int, int]:
        return text_of(event) if event.find(self.ordinary) >= 0 else (0, 0)  # else not new

    def read_beginning(self, beginning: bytes) -> Event:
        within = _TYPE.match(beginning)  # of an event without a name, if it is the first member
        kind = (name_of(beginning) or (within[1] if within else b"")).decode("ascii")
        if kind in _PREAMBLE:
            match = _ID.search(beginning) if kind == "response.created" else None
            return Event(Sign.QUIET, response_id=match[1].decode("ascii") if match else None)
        if kind in _LAST:
            return DONE
        return Event(Sign.ERROR) if kind in ("error", _FAILED) else TOKEN

    def goes_on(self, whole: Whole) -> bool:
        return bytes(whole.status) in _LATER

    def serves(self, whole: Whole) -> bool:
        has_any = bytes(whole.output) not in NOTHING or self.goes_on(whole)
        return has_any and bytes(whole.error) in NOTHING

    def response_id(self, whole: Whole) -> str | None:
        return _id_in(whole.id) if bytes(whole.object) == b'"response"' else None

    def id_at_beginning(self, beginning: bytes) -> str | None:
        match = _FIRST_ID.match(beginning)
        return match[1].decode("ascii") if match else None

    def aborted(self, whole: Whole) -> bool:
        """vLLM calls an answer that it gave up "completed". Only one without a token shows it."""
        usage = usage_of(whole.usage)
        return (
            bytes(whole.status) == b'"completed"'
            and usage is not None
            and usage.completion_tokens == 0
        )

    def error_event(self, error: PenstockError) -> bytes:
        """The API's flat `error` event, with `error` beside it, on which the SDK raises."""
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


def _id_in(raw: msgspec.Raw) -> str | None:
    try:
        return _string.decode(raw)
    except UNREADABLE:
        return None  # of an odd type, or missing
