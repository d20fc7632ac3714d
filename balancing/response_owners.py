"""Stored responses: which backend made one, how long it is, and how often all may be asked for one.

Only its engine's memory holds it. A forgotten owner is found again by asking every backend. So this
memory may be small and short: it only saves the asking.
"""

from typing import Final, NamedTuple

from penstock.balancing.fair_table import FairTable, KeyTable

OWNERS_MAX: Final = 65_536
# Few conversations rest for longer, and their backend may have restarted.
KEPT_S: Final = 3_600.0
# As long as the ids that the paths accept. vLLM's own have 37.
ID_CHARS_MAX: Final = 128


class _Made(NamedTuple):
    """A stored response. `tokens`: of the whole conversation up to its end."""

    backend: str
    until_s: float
    tenant: str
    tokens: int


class ResponseOwners:
    """Names of backends by response id: the last of the last KEPT_S, OWNERS_MAX or fewer.

    A response belongs to the tenant that created it ("" without tenants). A client, which is a
    tenant or else an address, with many responses does not make those of others forgotten.
    """

    def __init__(self) -> None:
        self.table: KeyTable[_Made] = KeyTable(OWNERS_MAX)

    def put(
        self,
        response_id: str,
        backend: str,
        now_s: float,
        tenant: str = "",
        client: str = "",
        tokens: int = 0,
    ) -> bool:
        """Remember which backend made a response. Returns whether it is remembered now.

        `tokens`: of the whole conversation up to its end, as far as is known. Ids that are too long
        are ignored.

        So are those of another tenant: clients of vLLM may choose the ids of their responses.
        """
        if len(response_id) > ID_CHARS_MAX or self.is_foreign(response_id, tenant, now_s):
            return False
        table = self.table
        table.put(response_id, _Made(backend, now_s + KEPT_S, tenant, tokens), client)
        while self._made(oldest := table.oldest(client), now_s) is None:
            table.remove(oldest)
        return True

    def find(self, response_id: str, now_s: float) -> str | None:
        """The name of the backend that made it. None when that is forgotten."""
        made = self._made(response_id, now_s)
        return made.backend if made is not None else None

    def tokens_of(self, response_id: str, tenant: str, now_s: float) -> int:
        """The tokens of the conversation up to the end of this response. 0 when they are forgotten,
        or if it is of another tenant."""
        made = self._made(response_id, now_s)
        return made.tokens if made is not None and made.tenant == tenant else 0

    def count(self, response_id: str, tenant: str, tokens: int) -> None:
        """Its backend has counted them. Does nothing if it is forgotten, or of another tenant."""
        made = self.table.find(response_id)
        if made is not None and made.tenant == tenant:
            self.table.change(response_id, made._replace(tokens=tokens))

    def is_foreign(self, response_id: str, tenant: str, now_s: float) -> bool:
        """Whether it is remembered as belonging to another tenant."""
        made = self._made(response_id, now_s)
        return made is not None and made.tenant != tenant

    def _made(self, response_id: str, now_s: float) -> _Made | None:
        made = self.table.find(response_id)
        return made if made is not None and made.until_s > now_s else None


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
    """Limits how often a client may have all backends asked for a stored response.

    After a restart the proxy has forgotten which backend made a response, so it asks the backends
    in turn. One request then becomes as many as there are backends, each with its body. So every
    question after the first backend is taken from the budget of its client (a tenant, or an address
    without tenants), by number and by size. An id that no backend knew is not searched again for a
    while.
    """

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
