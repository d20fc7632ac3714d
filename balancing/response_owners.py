"""Which backend made a stored response: it lies in that engine's memory and nowhere else.

What is forgotten here is found again by asking every backend, so the memory
may be small and short; it saves the asking.
"""

from typing import Final

from balancing.fair_table import FairTable

# About 350 bytes each.
OWNERS_MAX: Final = 65_536
# Conversations that rest for longer are few, and their backend may have restarted.
KEPT_S: Final = 3_600.0
# As long as the ids that the paths let through; vLLM's own have 37.
ID_CHARS_MAX: Final = 128


class ResponseOwners:
    """Names of backends by response id, the last OWNERS_MAX of the last KEPT_S.

    A response is of the tenant that had it made ("" where there are none), and no tenant's many
    make another's forgotten.
    """

    __slots__ = ("_owners", "_until_s")

    def __init__(self) -> None:
        # Names, when to forget them, and whose it is; the same moments by tenant, oldest first.
        self._owners: dict[str, tuple[str, float, str]] = {}
        self._until_s: FairTable[float] = FairTable(OWNERS_MAX)

    def __len__(self) -> int:
        return len(self._owners)

    def put(self, response_id: str, backend: str, now_s: float, tenant: str = "") -> None:
        """Remember who made a response; ids too long to be asked for are passed over.

        So is one that is another tenant's: clients of vLLM may name their responses.
        """
        if len(response_id) > ID_CHARS_MAX or self.is_foreign(response_id, tenant, now_s):
            return
        known = self._owners.get(response_id)
        if known is not None and known[2] != tenant:  # long ago
            self._until_s.remove(known[2], response_id)
        self._owners[response_id] = (backend, now_s + KEPT_S, tenant)
        gone = self._until_s.put(tenant, response_id, now_s + KEPT_S)
        if gone is not None:
            del self._owners[str(gone)]
        while (oldest := next(iter(self._until_s.of(tenant).items())))[1] <= now_s:
            self._until_s.remove(tenant, oldest[0])
            del self._owners[str(oldest[0])]

    def find(self, response_id: str, now_s: float) -> str | None:
        """The name of the backend that made it, None when nobody remembers."""
        backend, until_s, _ = self._owners.get(response_id, ("", now_s, ""))
        return backend if until_s > now_s else None

    def is_foreign(self, response_id: str, tenant: str, now_s: float) -> bool:
        """Whether it is remembered as another tenant's."""
        _, until_s, of = self._owners.get(response_id, ("", now_s, ""))
        return until_s > now_s and of != tenant
