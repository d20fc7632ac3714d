"""A real terminal: a window of tmux that runs one command, and what can be read in it."""

import asyncio
import itertools
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

WITHIN_S: Final = 20.0
_numbers = itertools.count()

TMUX: Final = shutil.which("tmux")


class Terminal:
    """One window, in a tmux server of its own."""

    def __init__(self, folder: Path) -> None:
        self._server = f"penstock-{os.getpid()}-{next(_numbers)}"
        self._written = folder / f"{self._server}.out"

    async def start(self, *command: str, width: int, height: int, **variables: str) -> None:
        """Run a command. When it ends, its exit status can be read."""
        words = [*(f"{name}={value}" for name, value in variables.items()), *command]
        line = f"env {shlex.join(words)}; echo exit status $?; exec sleep 100"
        size = ("-x", str(width), "-y", str(height))
        await self._tmux("-u", "-f", "/dev/null", "new-session", "-d", *size, line)

    async def stop(self) -> None:
        """Close the window."""
        await self._tmux("kill-server")

    async def press(self, *keys: str) -> None:
        """Press keys: characters, or names such as Enter."""
        await self._tmux("send-keys", "-t", "0", *keys)

    async def resize(self, width: int, height: int) -> None:
        """As a user does with the window."""
        await self._tmux("resize-window", "-t", "0", "-x", str(width), "-y", str(height))

    async def text(self, *, escapes: bool = False) -> str:
        """What is on the screen, with the codes of colours if they are asked for."""
        return await self._tmux("capture-pane", "-p", "-t", "0", *(("-e",) if escapes else ()))

    async def until(self, holds: Callable[[str], bool]) -> str:
        """The text of the screen once it satisfies a condition."""
        text = ""
        try:
            async with asyncio.timeout(WITHIN_S):
                while not holds(text := await self.text()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {WITHIN_S} s:\n{text}") from None
        return text

    async def bytes_written(self, seconds: float) -> int:
        """How many bytes the command writes in the next seconds."""
        await self._tmux("pipe-pane", "-t", "0", f"cat > {shlex.quote(str(self._written))}")
        await asyncio.sleep(seconds)
        count = self._written.stat().st_size
        await self._tmux("pipe-pane", "-t", "0")
        return count

    async def signal(self, number: signal.Signals) -> None:
        """Send the command a signal."""
        shell = await self._tmux("list-panes", "-t", "0", "-F", "#{pane_pid}")
        for child in _children(int(shell)):
            os.kill(child, number)

    async def _tmux(self, *arguments: str) -> str:
        assert TMUX is not None
        process = await asyncio.create_subprocess_exec(
            *(TMUX, "-L", self._server, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in listed.split()]
