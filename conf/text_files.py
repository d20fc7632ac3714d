"""Reads the text of a configuration: UTF-8, and not endless."""

from pathlib import Path
from typing import Final

from penstock.conf.issues import ConfigError, Issue

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
