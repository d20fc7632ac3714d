"""Reads the files that a configuration names: itself, and those of its secrets.

The content of the file named at `KEY_file`, beside a secret `KEY`, becomes the secret itself. A
relative name in the configuration file starts at the folder of that file, any other one at the
working directory. Messages name the key and the file, never the content. What is no regular file is
refused: a pipe that nobody writes to would block its reader for ever.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from penstock.conf.draft import Draft
from penstock.conf.issues import ConfigError, Issue, shown
from penstock.conf.keypath import KeyPath, is_secret, keys_at
from penstock.conf.kinds import (
    HEADER_LINES_CHARS_MAX,
    SECRET_CHARS_MAX,
    check_header_lines,
    check_secret,
)
from penstock.conf.settings import Settings


def read_regular(path: Path, most_bytes: int) -> bytes:
    """At most so many bytes of a file. Raises OSError, and ValueError for what is no name."""
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(most_bytes)


def _at_once(name: str, flags: int) -> int:
    """Open without waiting for a pipe's writer."""
    return os.open(name, flags | os.O_NONBLOCK)


# Which file a path leads to, and when that was changed: the resolved path, time, size and inode.
FileState = tuple[str, int, int, int]


def file_state(path: Path) -> FileState | None:
    """What changes when a file is written or a link to it is swapped. None: there is none."""
    try:
        real = os.path.realpath(path)
        told = os.stat(real)
    except (OSError, ValueError):
        return None
    return real, told.st_ctime_ns, told.st_size, told.st_ino


FILE_BYTES_MAX: Final = 1_048_576


def text_of_file(path: Path) -> str:
    """The text of a file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise ConfigError([Issue(str(path), (), problem)]) from None
    except ValueError:
        raise ConfigError([Issue(str(path), (), "is not the name of a file")]) from None
    if len(content) > FILE_BYTES_MAX:
        problem = f"is larger than {FILE_BYTES_MAX:,} bytes"
        raise ConfigError([Issue(str(path), (), problem)])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"not UTF-8: byte 0x{content[error.start]:02x}"
        raise ConfigError([Issue(f"{path}:{line}", (), problem)]) from None


# The longest secret, and what says whether it can be used.
_Kind = tuple[int, Callable[[SecretStr], SecretStr]]
_KEY: Final[_Kind] = (SECRET_CHARS_MAX, check_secret)
_LINES: Final[_Kind] = (HEADER_LINES_CHARS_MAX, check_header_lines)


def put_secrets(draft: Draft, folder: Path) -> None:
    """Read every secret file that is named, and put its content beside the name."""
    for named_at in [at for at in named_files(draft.tree) if _is_of_secret(at)]:
        _put_secret(draft, named_at[:-1], str(named_at[-1]).removesuffix("_file"), folder)


def later_files(draft: Draft) -> list[KeyPath]:
    """The keys that name other files, or a folder: those are read when the settings are known."""
    return [at for at in named_files(draft.tree) if not _is_of_secret(at)]


def named_files(node: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """All keys that name a file or a folder."""
    if isinstance(node, dict | list):
        for step, value in node.items() if isinstance(node, dict) else enumerate(node):
            names = isinstance(step, str) and (step in ("file", "dir") or step.endswith("_file"))
            if names and step in keys_at(Settings, path):
                yield *path, step
            yield from named_files(value, (*path, step))


def _is_of_secret(named_at: KeyPath) -> bool:
    return is_secret(Settings, (*named_at[:-1], str(named_at[-1]).removesuffix("_file")))


def _put_secret(draft: Draft, section: KeyPath, key: str, folder: Path) -> None:
    named_at = (*section, f"{key}_file")
    name, origin = draft.get(named_at), draft.origin_of(named_at)
    if not isinstance(name, str) or not name or origin is None:
        return
    if draft.get((*section, key)) is not None:
        draft.report(named_at, f"give either {key} or {key}_file, not both")
        return
    path = folder / name if origin.layer == "file" else Path(name)
    try:
        secret = _read_secret(path, _LINES if key == "headers" else _KEY)
    except ValueError as error:
        draft.report(named_at, f"{shown(name)} {error}")
        return
    doubt_open_file(draft, named_at, path)
    draft.put((*section, key), secret, origin)


def doubt_open_file(draft: Draft, named_at: KeyPath, path: Path) -> None:
    """Warn if everybody on this machine may read a secret. A missing file is reported elsewhere."""
    if (mode := mode_for_all(path)) is not None:
        problem = f"everybody on this machine may read it (mode {mode:04o})"
        draft.doubt(named_at, f"{shown(path.name)}: {problem}; chmod 600")


def mode_for_all(path: Path) -> int | None:
    """The permissions of a file that everybody may read. None for any other file."""
    with contextlib.suppress(OSError, ValueError):
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) and mode & stat.S_IROTH:
            return stat.S_IMODE(mode)
    return None


def _read_secret(path: Path, kind: _Kind) -> str:
    """The secret in the file. A ValueError says why there is none."""
    chars_max, check = kind
    try:
        content = read_regular(path, chars_max + 3)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError("is not the name of a file") from None
    text = content.decode("latin-1").replace("\r\n", "\n").removesuffix("\n").removesuffix("\r")
    return check(SecretStr(text)).get_secret_value()
