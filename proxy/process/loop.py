"""The event loop that the process runs on: uvloop where it is installed."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop. Without it on plain asyncio, which is slower."""
    try:
        import uvloop
    except ImportError:
        logging.getLogger(__name__).warning(
            "uvloop is missing: running on plain asyncio, at about twice the CPU per token"
        )
        return asyncio.run(main)
    return uvloop.run(main)
