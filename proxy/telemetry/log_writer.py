"""Writes the log and the access log in a thread, so that a reader who does not read stops nothing.

A write to a full pipe waits until somebody reads. So what is to be written waits in a queue, which
has a limit. What finds no place there is lost, and its owner counts it.
"""

import os
import threading
from queue import SimpleQueue
from typing import Final

# How long an end of the process waits for the reader.
CLOSE_S: Final = 1.0


class LogWriter:
    """Writes to one file descriptor."""

    def __init__(self, fd: int, waiting_max: int, name: str) -> None:
        """`waiting_max`: how many texts may wait. `name`: of the thread."""
        self._fd = fd
        self._waiting_max = waiting_max
        # A fault that the garbage collector meets is logged from anywhere, this queue's own code
        # included. No other queue allows that.
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name=name, daemon=True)
        self._thread.start()

    def write(self, text: bytes) -> bool:
        """Have whole lines written soon. False: too many wait, and these are lost."""
        if self._waiting.qsize() >= self._waiting_max:
            return False
        self._waiting.put(text)
        return True

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what waits; give up after `timeout_s` if nobody reads."""
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while (text := self._waiting.get()) is not None:
            try:
                while text:
                    text = text[os.write(self._fd, text) :]
            except OSError:
                continue  # nobody reads any more; keep emptying the queue, so that close() returns
