"""Backends from a file, looked at each second.

The path is resolved each time: Kubernetes swaps a link when a ConfigMap changes, which no watch on
the file itself would show. A file that cannot be read or understood tells nothing: what it listed
before stays.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.conf.document import UNREAD, read
from penstock.conf.files import FileState, file_state, read_regular
from penstock.proxy.discovery.beside import beside
from penstock.proxy.discovery.found import Entries, Found, Unusable, entries_of

LOOK_S: Final = 1.0
FILE_BYTES_MAX: Final = 4_194_304


def read_list(path: Path, entries: Entries) -> Found:
    """The backends that a file lists. Raises Unusable."""
    try:
        content = read_regular(path, FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Unusable(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise Unusable(f"{path.name} is larger than {FILE_BYTES_MAX:,} bytes")
    try:
        document = read(content.decode("utf-8-sig"), {})
    except UnicodeDecodeError:
        raise Unusable(f"{path.name} is not UTF-8") from None
    if document.faults or document.tree is UNREAD:
        fault = document.faults[0]
        raise Unusable(f"{path.name}, line {fault.line}: {fault.problem}")
    try:
        return entries.found(entries_of(document.tree))
    except ValueError as error:
        raise Unusable(f"{path.name}: {error}") from None


class FileSource:
    """Tells what a file lists, each time when it has changed."""

    def __init__(self, path: Path, entries: Entries) -> None:
        self._path = path
        self._entries = entries

    async def watch(self, tell: Callable[[Found | Unusable], None]) -> None:
        """Tell what it lists, until it is cancelled."""
        before: FileState | None = None
        first = True
        while True:
            state = await beside(lambda: file_state(self._path))
            if first or state != before:
                tell(await beside(self._read))
                first, before = False, state
            await asyncio.sleep(LOOK_S)

    def _read(self) -> Found | Unusable:
        try:
            return read_list(self._path, self._entries)
        except Unusable as error:
            return error
