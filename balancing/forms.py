"""Finds the model in a multipart form, as audio requests send it.

Readers of forms differ in many ways, and what a tenant may ask for must be what its backend reads.
So only a plain form is taken, which all of them (and so vLLM with Starlette and python-multipart)
read in the same way: it begins with its boundary, each part has one Content-Disposition with `name`
and perhaps a file's name, and no text is escaped. Only the heads of parts and the model are read.
One search finds the delimiter after a file of any size.
"""

import re
from collections.abc import Sequence
from typing import Final

from penstock.balancing.outline import COUNTED_BYTES, Steps

# Starlette refuses forms with more fields, or more files, than 1,000: so the rest is not read.
PARTS_MAX: Final = 2_000
_PARTS_A_STEP: Final = 256
# The longest head of a part. Clients write less than 300 bytes.
PART_HEAD_BYTES_MAX: Final = 1_024
# Bytes of heads that are read in one step.
_HEAD_BYTES_A_STEP: Final = 4_096
# Longer than any model name with which a server is started.
MODEL_BYTES_MAX: Final = 1_024
CONTENT_TYPE_BYTES_MAX: Final = 1_024
ODD_TYPE: Final = (
    "The Content-Type of a form must be one `multipart/form-data; boundary=...`, and in UTF-8."
)
ODD_FORM: Final = "A form must begin with its boundary, and nothing may follow one in its line."
LONG_HEAD: Final = f"The head of each part of a form may have {PART_HEAD_BYTES_MAX} bytes."
ODD_HEAD: Final = "Each part of a form must have one Content-Disposition, with a plain `name`."
ODD_MODEL: Final = "`model` must be in the form once, as text."

# RFC 2046 allows a boundary of 70 characters. Servers read forms in the charset that is named.
_TYPE_PARAMETER: Final = (
    rb'[ \t]*;[ \t]*(?:(boundary)=(?:"([!#-\[\]-~ ]{1,256})"|([!#-:<-\[\]-~]{1,256}))'
    rb'|charset="?utf-8"?)'
)
_TYPE: Final = re.compile(rb"multipart/form-data(?:%b)+[ \t]*" % _TYPE_PARAMETER, re.IGNORECASE)
_BOUNDARY: Final = re.compile(_TYPE_PARAMETER, re.IGNORECASE)

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE: Final = re.compile(rb"(%b):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)" % _TOKEN)
# Text in quotes may hold a backslash only in a file's name, and never before a quote.
_PARAMETER: Final = (
    rb"[ \t]*;[ \t]*(?:(name)=(?:\"([^\"\\]*)\"|(%b))"
    rb"|(filename\*?)=(?:\"(?:[^\"\\]|\\(?!\"))*\"|%b))" % (_TOKEN, _TOKEN)
)
_DISPOSITION: Final = re.compile(rb"form-data(?:%b)*[ \t]*" % _PARAMETER, re.IGNORECASE)
_NAMED: Final = re.compile(_PARAMETER, re.IGNORECASE)


class MalformedAsk(ValueError):
    """The body cannot be routed. The text says what to change and never holds the body."""


def boundary_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The boundary between the parts of a form. None if the body is none. Raises MalformedAsk."""
    kinds = [value for name, value in headers if name == b"content-type"]
    if not [kind for kind in kinds if kind.lstrip().lower().startswith(b"multipart/")]:
        return None
    kind = kinds[0].strip()
    if len(kinds) == 1 and len(kind) <= CONTENT_TYPE_BYTES_MAX and _TYPE.fullmatch(kind):
        found = [each for each in _BOUNDARY.finditer(kind) if each[1]]
        if len(found) == 1:
            return found[0][2] or found[0][3]
    raise MalformedAsk(ODD_TYPE)


def model_at(body: bytes, span: tuple[int, int] | None) -> str | None:
    """The model that a form names there. None if it is empty."""
    if span is None:
        return None
    begin, end = span
    return body[begin : min(end, begin + MODEL_BYTES_MAX)].decode("utf-8", "replace") or None


def model_span(body: bytes, boundary: bytes) -> Steps[tuple[int, int] | None]:
    """Where a form has the value of its field `model`. None if it has none. Raises MalformedAsk."""
    delimiter = b"\r\n--" + boundary
    at = len(delimiter) if body.startswith(delimiter) else len(delimiter) - 2
    if not body.startswith(delimiter[2:], at - len(delimiter) + 2):
        raise MalformedAsk(ODD_FORM)
    found: tuple[int, int] | None = None
    read_bytes = 0  # of heads in this step
    for number in range(PARTS_MAX):
        if body.startswith(b"--", at):
            break
        if not body.startswith(b"\r\n", at):
            raise MalformedAsk(ODD_FORM)
        head_end = body.find(b"\r\n\r\n", at, at + PART_HEAD_BYTES_MAX)
        if head_end < 0:
            raise MalformedAsk(LONG_HEAD)
        read_bytes += head_end - at
        if read_bytes > _HEAD_BYTES_A_STEP or number % _PARTS_A_STEP == _PARTS_A_STEP - 1:
            read_bytes = 0
            yield
        is_model, is_file = _is_model(body[at + 2 : max(at + 2, head_end)])
        end = yield from _find(body, delimiter, head_end + 4)
        if end < 0:
            break  # a part without an end does not count
        if is_model:
            if is_file or found is not None:
                raise MalformedAsk(ODD_MODEL)
            found = head_end + 4, end
        at = end + len(delimiter)
    return found


def _find(body: bytes, delimiter: bytes, at: int) -> Steps[int]:
    """Where the next delimiter begins, or -1."""
    while True:
        until = at + COUNTED_BYTES
        found = body.find(delimiter, at, until + len(delimiter) - 1)
        if found >= 0 or until >= len(body):
            return found
        at = until
        yield


def _is_model(head: bytes) -> tuple[bool, bool]:
    """Whether a part is named `model`, and whether it is a file. Raises MalformedAsk."""
    dispositions: list[bytes] = []
    for line in head.split(b"\r\n"):
        field = _LINE.fullmatch(line)
        if field is None:
            raise MalformedAsk(ODD_HEAD)
        if field[1].lower() == b"content-disposition":
            dispositions.append(field[2])
    if len(dispositions) != 1 or not _DISPOSITION.fullmatch(dispositions[0]):
        raise MalformedAsk(ODD_HEAD)
    parameters = list(_NAMED.finditer(dispositions[0]))
    names = [each[2] or each[3] or b"" for each in parameters if each[1]]
    files = [each[4].lower() for each in parameters if each[4]]
    if len(names) != 1 or len(set(files)) < len(files):
        raise MalformedAsk(ODD_HEAD)
    return names[0] == b"model", bool(files)
