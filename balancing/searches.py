"""Limits how often a client may have all backends asked for a stored response.

After a restart the proxy has forgotten which backend made a response, so it asks the backends in
turn. One request then becomes as many as there are backends, each with its body. So every question
after the first backend is taken from the client's own budget, by number and by size. An id that no
backend knew is not searched again for a while.
"""

from typing import Final

from penstock.balancing.fair_table import FairTable

# For one client. After a restart all of its conversations are searched at once. One of forty
# backends then gets no more than two or three such questions a second from it.
ASKS_PER_S: Final = 100.0
ASKS_MAX: Final = 400.0
# This many bytes of a body count as one more question.
BYTES_PER_ASK: Final = 65_536
# How long an id that no backend knew is not searched again for this client. Not longer, because
# clients of vLLM may choose the ids of responses, and another replica of the proxy may create one.
NOWHERE_S: Final = 10.0
NOWHERE_MAX: Final = 8_192
# About 200 bytes each. A forgotten client has its whole budget again.
CLIENTS_MAX: Final = 4_096


class Searches:
    """The budgets by client: a tenant, or an address when there are no tenants."""

    __slots__ = ("_budgets", "_nowhere")

    def __init__(self) -> None:
        self._budgets: dict[str, tuple[float, float]] = {}  # (what is left, since when)
        self._nowhere: FairTable[float] = FairTable(NOWHERE_MAX)  # until when

    def may_go_on(self, client: str, body_bytes: int, backends: int, now_s: float) -> bool:
        """Whether one more of `backends` backends may be asked. If so, it is charged."""
        most = max(ASKS_MAX, float(backends))  # otherwise a large fleet could never be searched
        left, at_s = self._budgets.pop(client, (most, now_s))
        left = min(most, left + (now_s - at_s) * ASKS_PER_S)
        price = min(most, 1.0 + body_bytes / BYTES_PER_ASK)
        enough = left >= price
        if len(self._budgets) >= CLIENTS_MAX:
            del self._budgets[next(iter(self._budgets))]
        self._budgets[client] = (left - price if enough else left, now_s)
        return enough

    def found_nowhere(self, client: str, response_id: str, model: str | None, now_s: float) -> None:
        """Note that all backends that may have it said that they do not."""
        self._nowhere.put(client, hash((response_id, model)), now_s + NOWHERE_S)

    def is_nowhere(self, client: str, response_id: str, model: str | None, now_s: float) -> bool:
        """Whether this client was told a moment ago that it does not exist."""
        until_s = self._nowhere.find(client, hash((response_id, model)))
        return until_s is not None and now_s < until_s
