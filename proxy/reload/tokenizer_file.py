"""Reads the tokenizer file of a configuration. A ConfigError tells its line."""

from pathlib import Path
from typing import Final

from penstock.balancing.token_counter import HuggingFace, Tiktoken, TokenCounter, TokenizerUnusable
from penstock.conf.issues import ConfigError, Issue
from penstock.conf.load import Loaded
from penstock.conf.regular_files import read_regular

# The largest files in use have 20 MB.
FILE_BYTES_MAX: Final = 268_435_456


def counter_of(loaded: Loaded, config: Path | None) -> TokenCounter | None:
    """The configured exact counter. None for the estimate by bytes. Raises ConfigError."""
    settings = loaded.settings.tokens
    if settings.file is None:
        return None
    try:
        content = _read(Path(settings.file))
        if settings.estimator == "tiktoken":
            return Tiktoken(content, settings.encoding)
        return HuggingFace(content)
    except TokenizerUnusable as error:
        where = loaded.origins["tokens.file"]
        if config is not None:
            where = where.replace("file:", f"{config}:", 1)
        raise ConfigError([Issue(where, ("tokens", "file"), str(error))]) from None


def _read(path: Path) -> bytes:
    try:
        content = read_regular(path, FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TokenizerUnusable(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise TokenizerUnusable(f"{path.name} is larger than {FILE_BYTES_MAX:,} bytes")
    return content
