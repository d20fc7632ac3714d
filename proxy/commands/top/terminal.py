"""`penstock top` as an application of textual: it reads the stream while the screen is up."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from textual.app import App
from textual.binding import Binding, BindingType

from penstock.proxy.commands.top.feed import Viewer
from penstock.proxy.commands.top.link import Link
from penstock.proxy.commands.top.screen import Admin, Main

INTERRUPTED: Final = 130


class Top(App[None]):
    """`read`: tells a viewer what the stream says. `admin`: makes a client for one question."""

    ENABLE_COMMAND_PALETTE = False
    # A waterfall needs all of 80 columns, and only a wider screen has room for a frame.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (86, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "stop", priority=True),
        Binding("ctrl+z", "suspend_process", "suspend", priority=True),
    ]
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    Canvas { width: 100%; height: 100%; }
    Reading { align: center middle; background: ansi_default; }
    Question { align: center middle; background: transparent; }
    .box {
        width: auto; min-width: 44; max-width: 100%; height: auto; max-height: 100%;
        padding: 0 1; border: round ansi_default; background: ansi_default;
    }
    Reading.-narrow .box { border: none; padding: 0; }
    .box VerticalScroll { width: auto; max-width: 100%; height: auto; max-height: 1fr; }
    .box Static { width: auto; max-width: 100%; height: auto; }
    .heading { text-style: bold; margin-bottom: 1; }
    .keys { color: ansi_bright_black; margin-top: 1; }
    """

    def __init__(
        self,
        url: str,
        read: Callable[[Viewer], Awaitable[None]],
        admin: Callable[[], Admin],
        now_s: float,
    ) -> None:
        super().__init__(ansi_color=True)
        self.main = Main(url, Link("connecting", now_s), admin)
        self._read = read

    async def on_mount(self) -> None:
        """Begin."""
        await self.push_screen(self.main)
        loop = asyncio.get_running_loop()
        # A terminal that is closed, and `kill`: the screen is given back as it was.
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        await self._read(self.main)

    def action_interrupt(self) -> None:
        """End as other commands do on Ctrl-C."""
        self.exit(return_code=INTERRUPTED)
