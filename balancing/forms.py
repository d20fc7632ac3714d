"""Finds the model in a multipart form, as audio requests send it.

It finds what vLLM itself finds (with Starlette and python-multipart): the last field `model`, or
none if that field is a file. Only the heads of parts and this value are read. One search finds the
delimiter after a file of any size. Starlette refuses forms with more parts than PARTS_MAX, so the
rest of such a form need not be read.
"""

import re
from collections.abc import Sequence
from typing import Final

from penstock.balancing.outline import COUNTED_BYTES, Steps

# Starlette refuses forms with more fields, or more files, than this.
PARTS_MAX: Final = 2_000
_PARTS_A_STEP: Final = 256
# The longest head of a part. Clients write less than 300 bytes. Reading its parameters costs some
# 0.2 ms a KB.
PART_HEAD_BYTES_MAX: Final = 1_024
LONG_HEAD: Final = f"The head of each part of a form may have {PART_HEAD_BYTES_MAX} bytes."
ODD_HEAD: Final = "Each part of a form must have one Content-Disposition, with a plain `name`."
# Bytes of heads that are read in one step.
_HEAD_BYTES_A_STEP: Final = 4_096
# Longer than any model name with which a server is started.
MODEL_BYTES_MAX: Final = 1_024
# Reading a header's parameters costs some 0.4 ms a KB.
CONTENT_TYPE_BYTES_MAX: Final = 1_024
# RFC 2046 allows 70.
BOUNDARY_BYTES_MAX: Final = 256

# One parameter of a header: quoted text with escapes, or bare text.
_PARAMETER: Final = re.compile(
    rb';[ \t]*([^=;" \t]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*+)"|([^;]*))[ \t]*'
)
_DISPOSITION: Final = re.compile(rb"(?:^|\r\n)content-disposition[ \t]*:[^;\r]*", re.IGNORECASE)
_ESCAPED: Final = re.compile(rb'\\(["\\])')


# What readers of forms understand in different ways: some find the name `model` in it, some do not.
_ODD: Final = re.compile(rb"[;\s]name\*", re.IGNORECASE)
_DISPOSITIONS: Final = re.compile(rb"content-disposition[ \t]*:", re.IGNORECASE)


class MalformedAsk(ValueError):
    """The body cannot be routed. The text says what to change and never holds the body."""


def boundary_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The boundary between the parts of a multipart form. None if the body is not a form."""
    for name, value in headers:
        if name == b"content-type":  # the first one counts, as in vLLM
            media_type, semicolon, rest = value.partition(b";")
            if media_type.strip().lower() != b"multipart/form-data":
                return None
            if len(value) > CONTENT_TYPE_BYTES_MAX:
                return None
            boundary = _parameters(semicolon + rest).get(b"boundary", b"")
            return boundary if len(boundary) <= BOUNDARY_BYTES_MAX else None
    return None


def model_at(body: bytes, span: tuple[int, int] | None) -> str | None:
    """The model that a form names there. None if it is empty."""
    if span is None:
        return None
    begin, end = span
    return body[begin : min(end, begin + MODEL_BYTES_MAX)].decode("utf-8", "replace") or None


def model_span(body: bytes, boundary: bytes) -> Steps[tuple[int, int] | None]:
    """Where a form has the value of its last field `model`. None if it has none.

    Raises MalformedAsk for a part whose name a backend may read in another way: what a tenant may
    ask for must be what the backend is asked for.
    """
    if not boundary:
        return None
    delimiter = b"\r\n--" + boundary
    # The first delimiter may begin the body. What comes before it is not a part.
    at = len(delimiter) - 2
    if not body.startswith(delimiter[2:]):
        begin = yield from _find(body, delimiter, 0)
        at = begin + len(delimiter) if begin >= 0 else -1
    found: tuple[int, int] | None = None
    read_bytes = 0  # of heads in this step
    for number in range(PARTS_MAX):
        if number % _PARTS_A_STEP == _PARTS_A_STEP - 1:
            yield
        if at < 0 or body.startswith(b"--", at):
            break
        head_end = body.find(b"\r\n\r\n", at, at + PART_HEAD_BYTES_MAX)
        end = yield from _find(body, delimiter, at if head_end < 0 else head_end + 4)
        if end < 0:
            break  # a part without an end does not count
        head = _checked(body, at, head_end)
        if head.find(b"model") >= 0:
            read_bytes += len(head)
            if read_bytes > _HEAD_BYTES_A_STEP:
                read_bytes = 0
                yield
            parameters = _disposition(head)
            if parameters.get(b"name") == b"model":
                is_text = b"filename" not in parameters
                found = (head_end + 4, end) if is_text else None
        at = end + len(delimiter)
    return found


def _checked(body: bytes, at: int, head_end: int) -> bytes:
    """The head of a part. Raises MalformedAsk."""
    if head_end < 0:
        raise MalformedAsk(LONG_HEAD)
    head = body[at + 2 : head_end]
    if _ODD.search(head) is not None or len(_DISPOSITIONS.findall(head)) > 1:
        raise MalformedAsk(ODD_HEAD)
    return head


def _find(body: bytes, delimiter: bytes, at: int) -> Steps[int]:
    """Where the next delimiter begins, or -1."""
    while True:
        until = at + COUNTED_BYTES
        found = body.find(delimiter, at, until + len(delimiter) - 1)
        if found >= 0 or until >= len(body):
            return found
        at = until
        yield


def _disposition(head: bytes) -> dict[bytes, bytes]:
    """The parameters of a part's Content-Disposition."""
    for found in _DISPOSITION.finditer(head):
        line_end = head.find(b"\r\n", found.end())
        return _parameters(head[found.end() : line_end if line_end >= 0 else len(head)])
    return {}


def _parameters(text: bytes) -> dict[bytes, bytes]:
    """Parameters by their lower-case names. Reading stops where they are malformed."""
    given: dict[bytes, bytes] = {}
    at = 0
    while (found := _PARAMETER.match(text, at)) is not None:
        quoted, bare = found.group(2), found.group(3)
        value = bare if quoted is None else _ESCAPED.sub(rb"\1", quoted)
        given[found.group(1).lower()] = value.strip() if quoted is None else value
        at = found.end()
    return given
