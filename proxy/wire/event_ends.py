"""Finds the ends of events in a stream: an event ends at an empty line.

Server-sent events may end their lines in LF, CR LF or CR. One stream may mix them: the comments of
a gateway need not end like a server's events. Inside JSON all of them are escaped.
"""

import re
from typing import Final

from penstock.proxy.wire import native

LF: Final = b"\n\n"
# As numbers, because searching for a byte takes ten times longer.
CR: Final = 13
NEWLINE: Final = 10
# An incomplete end is shorter than this.
PART_BYTES: Final = 3

# After a line end comes an empty line: LF, CR LF, or a CR that no LF follows. At the end of the
# data a CR may be the first half of a CR LF, but after another CR it is an empty line by itself.
_END: Final = re.compile(rb"\n\n|\n\r\n|\r\r\n?|\n\r(?=[^\n])")


def after_first(data: bytes) -> int:
    """The position after the first event of `data`, 0 if none ends."""
    if CR not in data:
        return _behind(data.find(LF))
    match = _END.search(data)
    return match.end() if match is not None else 0


def after_last(data: bytes, start: int = 0) -> int:
    """The position after the last whole event of `data`, 0 if none ends after `start`."""
    if data.find(b"\r", start) < 0:
        return _behind(data.rfind(LF, start))
    end = 0
    for match in _END.finditer(data, start):
        end = match.end()
    return end


def _behind(at: int) -> int:
    return at + len(LF) if at >= 0 else 0


def has_data(data: bytes) -> bool:
    """Whether `data`, the beginning of an event, has a line of data."""
    if data.startswith(b"data:") or data.find(b"\ndata:") >= 0:
        return True
    return data.find(b"\rdata:") >= 0


def split(data: bytes) -> list[bytes]:
    """The events of `data`, each with its end. The last one may lack it."""
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


def any_ordinary_events(read: bytes, like: bytes) -> int:
    """How many events a read has, if each of them has `like` once and ends in LF. Otherwise 0.

    `like` stands in one line, and not at the beginning of an event. Without it no event is
    ordinary.
    """
    if not read.endswith(LF) or CR in read:
        return 0
    if NEWLINE not in read[:-2]:  # the usual read: one event of one line
        return 1 if 0 < read.rfind(like) < len(read) else 0
    count = read.count(LF)
    return count if read.count(like) == count else 0


# A third of the time that a usual read took was for these searches.
ordinary_events: Final = native.ordinary_events if native.AVAILABLE else any_ordinary_events
