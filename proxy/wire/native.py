"""What reads usual heads and chunks, and writes header lines, in C, where a C compiler built it.

Everything else is read by the twins in `header_fields.py` and `dechunk.py`.
"""

try:
    from penstock.proxy.wire._native import FieldParser, lines_of, whole_chunks

    AVAILABLE = True
except ImportError:  # an interpreted installation
    AVAILABLE = False

__all__ = ["AVAILABLE", "FieldParser", "lines_of", "whole_chunks"]
