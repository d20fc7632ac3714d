"""How often a client may have all backends asked for a stored response, and what was not there.

Who made a response is forgotten with a restart of the proxy, and then the backends are asked in
turn: one request becomes as many as there are backends, its body with each. So what a client asks
beyond the first backend is taken from a budget of its own, by number and by size, and an id that
nobody knew is not looked for again for a while.
"""

from typing import Final

from balancing.fair_table import FairTable

# Of one client. After a restart a client's conversations are all looked for at once; a backend of
# forty gets no more than two or three such questions a second of it.
ASKS_PER_S: Final = 100.0
ASKS_MAX: Final = 400.0
# So many bytes of a body count as one more.
BYTES_PER_ASK: Final = 65_536
# As long as the engines may need to be asked by somebody who tries again and again. No longer:
# clients of vLLM may name their responses, and another replica of the proxy may have one made.
NOWHERE_S: Final = 10.0
NOWHERE_MAX: Final = 8_192
# About 200 bytes each. One that is forgotten has its whole budget again.
CLIENTS_MAX: Final = 4_096


class Searches:
    """By client: a tenant, or an address where nobody is asked who he is."""

    __slots__ = ("_budgets", "_nowhere")

    def __init__(self) -> None:
        self._budgets: dict[str, tuple[float, float]] = {}  # what is left, and since when
        self._nowhere: FairTable[float] = FairTable(NOWHERE_MAX)  # until when

    def may_go_on(self, client: str, body_bytes: int, backends: int, now_s: float) -> bool:
        """Whether one more of so many backends may be asked; it counts if so."""
        most = max(ASKS_MAX, float(backends))  # or a large fleet could never be asked
        left, at_s = self._budgets.pop(client, (most, now_s))
        left = min(most, left + (now_s - at_s) * ASKS_PER_S)
        price = min(most, 1.0 + body_bytes / BYTES_PER_ASK)
        enough = left >= price
        if len(self._budgets) >= CLIENTS_MAX:
            del self._budgets[next(iter(self._budgets))]
        self._budgets[client] = (left - price if enough else left, now_s)
        return enough

    def found_nowhere(self, client: str, response_id: str, model: str | None, now_s: float) -> None:
        """All who may have it said that they do not."""
        self._nowhere.put(client, hash((response_id, model)), now_s + NOWHERE_S)

    def is_nowhere(self, client: str, response_id: str, model: str | None, now_s: float) -> bool:
        """Whether this client was told so a moment ago."""
        until_s = self._nowhere.find(client, hash((response_id, model)))
        return until_s is not None and now_s < until_s
