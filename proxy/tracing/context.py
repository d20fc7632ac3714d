"""Reads and writes W3C trace context: which trace a request belongs to, and who called. Pure.

By https://www.w3.org/TR/trace-context: a `traceparent` that is malformed or comes twice counts as
none, and then `tracestate` means nothing. Of a version that is not known the first 55 characters
count. What is written is version 00, with the sampled flag alone.
"""

import re
from typing import Final, NamedTuple

from penstock.proxy.wire.header_fields import Headers

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
NAME_BYTES: Final = 11  # of traceparent
PARENT_BYTES: Final = 55
# Maps hexadecimal digits in lower case to x and a dash to itself, and what a parent is then.
_SHAPE: Final = bytes(
    ord("x") if byte in b"0123456789abcdef" else 45 * (byte == 45) for byte in range(256)
)
_SHAPED: Final = b"xx-%b-%b-xx" % (b"x" * 32, b"x" * 16)
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16
_KNOWN: Final = b"00"
_INVALID: Final = b"ff"
DASH: Final = 45
# A key, or a key of a vendor's tenant, and a value that does not end in a blank.
_MEMBER: Final = re.compile(
    rb"(?:[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
MEMBERS_MAX: Final = 32
# No valid list is longer or has more commas, but for some empty members. A longer one is not read:
# a head full of commas would take milliseconds.
READ_BYTES_MAX: Final = 16_640
COMMAS_MAX: Final = 2 * MEMBERS_MAX
# As many must be passed on. A longer list loses its long members first, then its last ones.
STATE_BYTES_MAX: Final = 512
LONG_MEMBER_BYTES: Final = 128


class Context(NamedTuple):
    """Where a request stands in a trace. Ids are in hexadecimal. `state`: what other vendors have
    noted, empty if none."""

    trace_id: bytes
    parent_id: bytes
    sampled: bool
    state: bytes


def trace_id_of(headers: Headers) -> str:
    """The id of the trace that the request belongs to. Empty: of none."""
    given: bytes | None = None
    for field in headers:
        name = field[0]
        # Every request comes here, most without one. Comparing lengths first saves a sixth of it.
        if len(name) == NAME_BYTES and name == TRACEPARENT:
            if given is not None:
                return ""
            given = field[1]
    if given is None:
        return ""
    parts = _parts(given)
    return parts[0].decode("ascii") if parts is not None else ""


def context_of(headers: Headers) -> tuple[Context | None, bool]:
    """Where the request stands in its client's trace, and whether it has any such header.

    None: it begins a trace.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for field in headers:
        if field[0] == TRACEPARENT:
            parents.append(field[1])
        elif field[0] == TRACESTATE:
            states.append(field[1])
    parts = _parts(parents[0]) if len(parents) == 1 else None
    if parts is None:
        return None, bool(parents or states)
    state = state_of(b",".join(states)) if states else b""
    return Context(parts[0], parts[1], parts[2], state), True


def without_context(headers: Headers) -> Headers:
    """The other headers."""
    return [field for field in headers if field[0] != TRACEPARENT and field[0] != TRACESTATE]


def context_headers(trace_id: bytes, span_id: bytes, sampled: bool, state: bytes) -> Headers:
    """The headers for whoever is called by this span."""
    flags = b"01" if sampled else b"00"
    parent = (TRACEPARENT, b"-".join([_KNOWN, trace_id, span_id, flags]))
    return [parent, (TRACESTATE, state)] if state else [parent]


def state_of(value: bytes) -> bytes:
    """A `tracestate` as it may be sent on. Empty if it is malformed."""
    if len(value) > READ_BYTES_MAX or value.count(b",") > COMMAS_MAX:
        return b""
    members = [member for each in value.split(b",") if (member := each.strip(b" \t"))]
    if len(members) > MEMBERS_MAX:
        return b""
    for member in members:
        if _MEMBER.fullmatch(member) is None:
            return b""
    state = b",".join(members)
    if len(state) <= STATE_BYTES_MAX:
        return state
    members = [member for member in members if len(member) <= LONG_MEMBER_BYTES]
    while len(state := b",".join(members)) > STATE_BYTES_MAX:
        members.pop()
    return state


def _parts(value: bytes) -> tuple[bytes, bytes, bool] | None:
    """The trace's id, the caller's span id, and whether it is sampled. None if malformed."""
    # Without a pattern, which costs more: every request with a parent comes here.
    known = value if len(value) == PARENT_BYTES else value[:PARENT_BYTES]
    if known.translate(_SHAPE) != _SHAPED:
        return None
    version, trace_id, parent_id = known[:2], known[3:35], known[36:52]
    if version == _INVALID or trace_id == _NO_TRACE or parent_id == _NO_SPAN:
        return None
    if len(value) > PARENT_BYTES and (version == _KNOWN or value[PARENT_BYTES] != DASH):
        return None
    digit = known[54]
    # The lowest bit of the last hexadecimal digit. That of its ASCII code is the same for 0 to 9,
    # and the opposite for a to f: a is 0x61, and stands for 10.
    return trace_id, parent_id, bool((digit ^ digit >> 6) & 1)
