"""The event loop that the process runs on: uvloop where it is installed."""

import asyncio
import logging
import socket
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

    class Loop(uvloop.Loop):
        async def getaddrinfo(self, *where: Any, **options: Any) -> Any:
            """Use no thread for a numeric address. We connect to no others.

            `sock_connect` names no type of socket. uvloop 0.23 then asks a thread, for each
            connection.
            """
            return await super().getaddrinfo(*where, **{"type": socket.SOCK_STREAM, **options})

    return uvloop.run(main, loop_factory=Loop)
