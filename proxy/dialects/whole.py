"""The members of a whole JSON answer that tell something about it, read in one pass.

A small answer is decoded. A large one is read in steps, because a million bytes of small objects
take 10 ms to decode.
"""

import re
from typing import Final

import msgspec

from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps
from penstock.proxy.dialects.members import Whole

# Decoding this much takes 0.7 ms at most.
SMALL_BYTES: Final = 65_536
# Inside them stands whether the backend gave the answer up, and whether there is any text.
_READ_WHOLE: Final = frozenset({"choices", "content"})
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_EMPTY: Final = re.compile(rb"\s*[\[{]\s*[\]}]\s*\Z")
# An object of more bytes has a member: nobody writes so many blanks.
_EMPTY_BYTES_MAX: Final = 16
_LIST: Final = re.compile(rb"\s*\[")


_whole = msgspec.json.Decoder(Whole)
_any = msgspec.json.Decoder(msgspec.Raw)


def whole_of(body: bytes) -> Whole | None:
    """The members of a small answer. None if it is no JSON object or list, or an empty one."""
    try:
        if body.startswith(b"{") and len(body) > _EMPTY_BYTES_MAX:  # the usual answer
            return _whole.decode(body)
        if _EMPTY.match(body):
            return None
        if _LIST.match(body):
            _any.decode(body)
            return Whole()
        return _whole.decode(body)
    except _UNREADABLE:
        return None


def reading_whole(body: bytes) -> Steps[Whole | None]:
    """The same of an answer of any size."""
    if len(body) <= SMALL_BYTES:
        return whole_of(body)
    if _LIST.match(body):
        return Whole()
    try:
        # Many answers wait for their turns at once, and only one of each is counted: no copies.
        return (yield from members(body, _whole, _READ_WHOLE, copies=False))
    except NoObject:
        return None
