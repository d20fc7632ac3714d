"""Where a request would go: the first half of a choice (`gate`)."""

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Pool


class Look:
    """Where a request would go now. It is valid for this moment only.

    `fit`: it could go to each of them. `bound`: only the chosen one holds what is asked for.
    `aimed`: and others would have served it without that. (A named tuple takes ten times as long.)
    """

    __slots__ = ("aimed", "ask", "bound", "chosen", "fit", "pool")

    def __init__(
        self,
        pool: Pool,
        fit: list[Backend],
        ask: Ask,
        chosen: Backend,
        *,
        bound: bool = False,
        aimed: bool = False,
    ) -> None:
        self.pool = pool
        self.fit = fit
        self.ask = ask
        self.chosen = chosen
        self.bound = bound
        self.aimed = aimed

    @property
    def asks_only(self) -> bool:
        """Whether it asks for a stored response. That may end one, so no limit holds it up."""
        return self.ask.response_id is not None and not self.ask.engine
