"""What is done in C, where a C compiler built it: usual heads, chunks and bodies (`c/`).

Everything else is read by the twins in `header_fields.py` and `dechunk.py`. A BytesIO is the twin
of a Buffer.
"""

try:
    from penstock.proxy.wire._native import Buffer, FieldParser, line_ends, lines_of, whole_chunks

    AVAILABLE = True
except ImportError:  # an interpreted installation
    AVAILABLE = False

__all__ = ["AVAILABLE", "Buffer", "FieldParser", "line_ends", "lines_of", "whole_chunks"]
