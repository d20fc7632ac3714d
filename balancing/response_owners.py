"""Which backend made a stored response, and how long it is. Only that engine's memory holds it.

A forgotten owner is found again by asking every backend. So this memory may be small and short: it
only saves the asking.
"""

from typing import Final

from penstock.balancing.fair_table import FairTable

OWNERS_MAX: Final = 65_536
# Few conversations rest for longer, and their backend may have restarted.
KEPT_S: Final = 3_600.0
# As long as the ids that the paths accept. vLLM's own have 37.
ID_CHARS_MAX: Final = 128


class ResponseOwners:
    """Names of backends by response id: the last of the last KEPT_S, OWNERS_MAX or fewer.

    A response belongs to the tenant that created it ("" without tenants). A client, which is a
    tenant or else an address, with many responses does not make those of others forgotten.
    """

    __slots__ = ("_owners", "_tokens", "_until_s")

    def __init__(self) -> None:
        # id -> (backend, when to forget it, tenant, client). The times by client, oldest first.
        self._owners: dict[str, tuple[str, float, str, str]] = {}
        self._tokens: dict[str, int] = {}  # of the same ids: the conversation up to its end
        self._until_s: FairTable[float] = FairTable(OWNERS_MAX)

    def __len__(self) -> int:
        return len(self._owners)

    def limit(self, most: int) -> None:
        """Remember at most so many responses from now on, and never more than OWNERS_MAX."""
        self._until_s.most = min(most, OWNERS_MAX)
        self._shrink(self._until_s.most)

    def halve(self) -> None:
        """Forget half of the responses. As many as before may come."""
        self._shrink(len(self) // 2)

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
        known = self._owners.get(response_id)
        if known is not None and known[3] != client:
            self._until_s.remove(known[3], response_id)
        self._owners[response_id] = (backend, now_s + KEPT_S, tenant, client)
        self._tokens[response_id] = tokens
        gone = self._until_s.put(client, response_id, now_s + KEPT_S)
        if gone is not None:
            self._forget(str(gone))
        while (oldest := next(iter(self._until_s.of(client).items())))[1] <= now_s:
            self._until_s.remove(client, oldest[0])
            self._forget(str(oldest[0]))
        return True

    def find(self, response_id: str, now_s: float) -> str | None:
        """The name of the backend that made it. None when that is forgotten."""
        backend, until_s, _, _ = self._owners.get(response_id, ("", now_s, "", ""))
        return backend if until_s > now_s else None

    def tokens_of(self, response_id: str, tenant: str, now_s: float) -> int:
        """The tokens of the conversation up to the end of this response. 0 when they are forgotten,
        or if it is of another tenant."""
        _, until_s, of, _ = self._owners.get(response_id, ("", now_s, "", ""))
        return self._tokens[response_id] if until_s > now_s and of == tenant else 0

    def count(self, response_id: str, tenant: str, tokens: int) -> None:
        """Its backend has counted them. Does nothing if it is forgotten, or of another tenant."""
        known = self._owners.get(response_id)
        if known is not None and known[2] == tenant:
            self._tokens[response_id] = tokens

    def is_foreign(self, response_id: str, tenant: str, now_s: float) -> bool:
        """Whether it is remembered as belonging to another tenant."""
        _, until_s, of, _ = self._owners.get(response_id, ("", now_s, "", ""))
        return until_s > now_s and of != tenant

    def _shrink(self, size: int) -> None:
        for gone in self._until_s.shrink(size):
            self._forget(str(gone))
        self._owners = dict(self._owners)  # without the room of what was deleted
        self._tokens = dict(self._tokens)

    def _forget(self, response_id: str) -> None:
        del self._owners[response_id], self._tokens[response_id]
