"""Where the events of a stream end: at an empty line, whatever ends its lines.

The standard of server-sent events allows LF, CR LF and CR. One stream may hold several: a
gateway's comments need not end like a server's events. Inside JSON each is escaped.
"""

import re
from typing import Final

LF: Final = b"\n\n"
# As a number: to look for a byte takes ten times longer.
CR: Final = 13
# An end that is not whole yet is shorter than this.
PART_BYTES: Final = 3

# After a line end: LF, CR LF, or a CR that no LF follows. The CR of a last CR LF may be all
# that has come of it, but after another CR it is an empty line by itself.
_END: Final = re.compile(rb"\n\n|\n\r\n|\r\r\n?|\n\r(?=[^\n])")


def after_first(data: bytes) -> int:
    """Where the first event of `data` ends, 0 if none does."""
    if CR not in data:
        return _behind(data.find(LF))
    match = _END.search(data)
    return match.end() if match is not None else 0


def after_last(data: bytes, start: int = 0) -> int:
    """Where the last whole event of `data` ends, 0 if none does; before `start` none does."""
    if data.find(b"\r", start) < 0:
        return _behind(data.rfind(LF, start))
    end = 0
    for match in _END.finditer(data, start):
        end = match.end()
    return end


def _behind(at: int) -> int:
    return at + len(LF) if at >= 0 else 0


def split(data: bytes) -> list[bytes]:
    """The events of `data`, each with its end; the last one may lack it."""
    if CR not in data:
        events = [event + LF for event in data.split(LF)]
        last = events.pop()[:-2]
    else:
        events, begin = [], 0
        for match in _END.finditer(data):
            events.append(data[begin : match.end()])
            begin = match.end()
        last = data[begin:]
    if last:
        events.append(last)
    return events
