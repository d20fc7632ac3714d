"""A proxy that meters its loop: `python -m penstock.bench.reliability.metered FILE serve …`.

The longest turn since somebody wrote a zero there, in seconds of the loop's own CPU time, stands in
FILE as one float: what other processes took from the machine meanwhile is not in it. A call in
every turn is what that takes, so the loop never rests.
"""

import asyncio
import mmap
import runpy
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any, Final

import uvloop

FLOAT: Final = struct.Struct("d")


class Meter:
    """The longest turn, as both processes see it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), FLOAT.size)

    @property
    def longest_s(self) -> float:
        longest_s: float = FLOAT.unpack(self._shared)[0]
        return longest_s

    def reset(self, longest_s: float = 0.0) -> None:
        self._shared[:] = FLOAT.pack(longest_s)


def _metered(path: Path, run: Callable[..., Any]) -> Callable[..., Any]:
    meter = Meter(path)

    async def beside(work: Any) -> Any:
        loop = asyncio.get_running_loop()
        last_s = thread_time()

        def turn() -> None:
            nonlocal last_s
            now_s = thread_time()
            if now_s - last_s > meter.longest_s:
                meter.reset(now_s - last_s)
            last_s = now_s
            loop.call_soon(turn)

        turn()
        return await work

    return lambda work, **options: run(beside(work), **options)


if __name__ == "__main__":
    uvloop.run = _metered(Path(sys.argv[1]), uvloop.run)
    sys.argv = ["penstock", *sys.argv[2:]]
    runpy.run_module("penstock.proxy", run_name="__main__")
