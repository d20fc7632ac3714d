"""Lines of the log that nobody outside can forge, and that tell no secret.

Whatever is logged stays on its line, in printable characters and bounded. An
exception is logged by its type and where it was raised, without its text, which
may quote what a client sent; so are the loop's own reports, which may quote the
arguments of a callback.
"""

import asyncio
import logging
import ssl
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Final

logger = logging.getLogger(__name__)

# Seconds since 1970: the access log's clock, and no time zone to guess.
FORMAT: Final = "%(created).3f %(levelname)s %(name)s %(message)s"
LINE_CHARS_MAX: Final = 2_048
# Of exceptions that led to each other.
CAUSES_MAX: Final = 4
_CONNECTION_ENDS: Final = (ssl.SSLError, ConnectionError)

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LineFormatter(logging.Formatter):
    """A record as one printable line; below it the frames of an exception, if there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: _Raised) -> str:  # noqa: N802 - logging's name
        lines: list[str] = []
        error = ei[1]
        for _ in range(CAUSES_MAX):
            if error is None:
                break
            frames = "".join(traceback.format_tb(error.__traceback__))
            lines.append(f"Traceback (most recent call last):\n{frames}{_named(error)}")
            error = error.__cause__ or error.__context__
        return "\nwhile this was handled:\n".join(lines)


def printable(text: str) -> str:
    """The text on one line, what is no printable character escaped, cut where it is too long."""
    if len(text) > LINE_CHARS_MAX:
        text = text[:LINE_CHARS_MAX] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def log_to_stderr(level: str) -> None:
    """Log to stderr; stdout is the access log's. What Python tells by itself goes there too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable


def log_of_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's handler of exceptions that nobody else took."""
    message = str(context.get("message", "")).partition("(")[0]  # arguments come after it
    error = context.get("exception")
    if message.startswith("Future exception") and isinstance(error, _CONNECTION_ENDS):
        # uvloop keeps a connection's end in a future; who opened it gave it up in that moment.
        logger.debug("loop: a connection that nobody waits for ended: %s", _named(error))
        return
    logger.error("loop: %s", message, exc_info=error)


def _named(error: BaseException) -> str:
    """The type, and what the system said, which quotes nobody."""
    kind = type(error).__qualname__
    reason = error.strerror if isinstance(error, OSError) else None
    return printable(f"{kind}: {reason}" if isinstance(reason, str) else kind)


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    logger.error("thread failed", exc_info=args.exc_value)


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    logger.error("exception ignored", exc_info=args.exc_value)
