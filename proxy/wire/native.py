"""What is done in C, where a C compiler built it: usual heads, chunks, bodies and events (`c/`).

Everything else is read by the twins in `header_fields.py`, `dechunk.py`, `event_ends.py` and
`long_reads.py`. A BytesIO is the twin of a Buffer.
"""

try:
    from penstock.proxy.wire._native import (
        Buffer,
        FieldParser,
        chunk_of,
        line_ends,
        lines_of,
        ordinary_events,
        whole_chunks,
    )

    AVAILABLE = True
except ImportError:  # an interpreted installation
    AVAILABLE = False

__all__ = [
    "AVAILABLE",
    "Buffer",
    "FieldParser",
    "chunk_of",
    "line_ends",
    "lines_of",
    "ordinary_events",
    "whole_chunks",
]
