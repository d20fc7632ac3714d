"""Reads files that a configuration names. What is no regular file is refused.

A pipe that nobody writes to would block its reader for ever.
"""

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, most_bytes: int) -> bytes:
    """At most so many bytes of a file. Raises OSError, and ValueError for what is no name."""
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(most_bytes)


def _at_once(name: str, flags: int) -> int:
    """Open without waiting for a pipe's writer."""
    return os.open(name, flags | os.O_NONBLOCK)
