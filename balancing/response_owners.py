"""Which backend made a stored response: it lies in that engine's memory and nowhere else.

What is forgotten here is found again by asking every backend, so the memory
may be small and short; it saves the asking.
"""

from collections import OrderedDict
from typing import Final

# About 250 bytes each.
OWNERS_MAX: Final = 65_536
# Conversations that rest for longer are few, and their backend may have restarted.
KEPT_S: Final = 3_600.0
# As long as the ids that the paths let through; vLLM's own have 37.
ID_CHARS_MAX: Final = 128


class ResponseOwners:
    """Names of backends by response id, the last OWNERS_MAX of the last KEPT_S.

    A response is of the tenant that had it made ("" where there are none).
    """

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        # Oldest first: names, when to forget them, and whose it is.
        self._owners: OrderedDict[str, tuple[str, float, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def put(self, response_id: str, backend: str, now_s: float, tenant: str = "") -> None:
        """Remember who made a response; ids too long to be asked for are passed over.

        So is one that is another tenant's: clients of vLLM may name their responses.
        """
        if len(response_id) > ID_CHARS_MAX or self.is_foreign(response_id, tenant, now_s):
            return
        owners = self._owners
        owners[response_id] = (backend, now_s + KEPT_S, tenant)
        owners.move_to_end(response_id)
        while len(owners) > OWNERS_MAX or next(iter(owners.values()))[1] <= now_s:
            owners.popitem(last=False)

    def find(self, response_id: str, now_s: float) -> str | None:
        """The name of the backend that made it, None when nobody remembers."""
        backend, until_s, _ = self._owners.get(response_id, ("", now_s, ""))
        return backend if until_s > now_s else None

    def is_foreign(self, response_id: str, tenant: str, now_s: float) -> bool:
        """Whether it is remembered as another tenant's."""
        _, until_s, of = self._owners.get(response_id, ("", now_s, ""))
        return until_s > now_s and of != tenant
