"""A call beside the loop, in a thread for which the end of the process does not wait.

Reading a file of a dead file server may take for ever, and nothing can stop that.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def beside(call: Callable[[], T]) -> T:
    """What `call` returns. Raises what it raises."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[T] = loop.create_future()

    def tell(found: list[T], error: Exception | None) -> None:
        if told.done():
            return
        if error is not None:
            told.set_exception(error)
        else:
            told.set_result(found[0])

    def run() -> None:
        found: list[T] = []
        failed: Exception | None = None
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - whoever waits handles it
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, found, failed)

    threading.Thread(target=run, name="beside", daemon=True).start()
    return await told
