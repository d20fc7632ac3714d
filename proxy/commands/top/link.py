"""How the stream stands: whether it tells something, and since when it does not."""

from typing import Literal, NamedTuple

from penstock.proxy.commands.top.figures import clock


class Link(NamedTuple):
    """`since`: the time, Unix. `why`: what went wrong, in words."""

    state: Literal["connecting", "live", "lost"]
    since: float
    why: str = ""

    @property
    def trouble(self) -> str:
        """What the first line says. Nothing while all is well."""
        if self.state != "lost":
            return ""
        return f"! No news since {clock(self.since)}: {self.why} It tries again by itself."
