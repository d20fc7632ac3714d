"""Counting tokens beside the loop: one thread, a bounded queue, an answer to the loop.

The tokenizers let go of the interpreter lock while they work, so streams go on.
What is too large, or comes while the queue is full, keeps its estimate: a
request must not wait longer to be counted than the count is worth.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from balancing.token_counter import HuggingFace, Tiktoken, TokenCounter, TokenizerUnusable, texts_of
from conf.issues import ConfigError, Issue
from conf.load import Loaded

logger = logging.getLogger(__name__)

# tiktoken does some 3 MB/s here: a quarter of a megabyte is below a tenth of a second.
BODY_BYTES_MAX: Final = 262_144
QUEUE_MAX: Final = 32

TOKENIZER_BYTES_MAX: Final = 268_435_456

Counted = Callable[[int | None], None]


class Counting:
    """Counts the prompts of requests with `counter`, off the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, counter: TokenCounter) -> None:
        self._loop = loop
        self._counter = counter
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._queued = 0

    def submit(self, body: bytes, counted: Counted) -> bool:
        """Count the prompt in `body` and call back on the loop, with None if that failed.

        False when it will not be counted.
        """
        if len(body) > BODY_BYTES_MAX or self._queued >= QUEUE_MAX:
            return False
        self._queued += 1
        self._threads.submit(self._count, body, counted)
        return True

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _count(self, body: bytes, counted: Counted) -> None:
        tokens = None
        try:
            tokens = self._counter.count(texts_of(body))
        except Exception:  # the thread's root: the request goes on with its estimate
            logger.exception("counting tokens failed")
        finally:
            self._loop.call_soon_threadsafe(self._answer, tokens, counted)

    def _answer(self, tokens: int | None, counted: Counted) -> None:
        self._queued -= 1
        counted(tokens)


def counter_of(loaded: Loaded, config: Path | None) -> TokenCounter | None:
    """The exact counter that is configured, None for the estimate by bytes. Raises ConfigError."""
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
        with path.open("rb") as file:
            content = file.read(TOKENIZER_BYTES_MAX + 1)
    except OSError as error:
        raise TokenizerUnusable(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) > TOKENIZER_BYTES_MAX:
        raise TokenizerUnusable(f"{path.name} is larger than {TOKENIZER_BYTES_MAX:,} bytes")
    return content
