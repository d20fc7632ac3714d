"""How one request came to a version of its route, and what was there then."""

from penstock.balancing.canary.steps import Canary


class Draw:
    """One request's lot. `key`: the hash that drew it, None if it was drawn for it alone.

    `fresh`: its client could not know the version (`fresh_keys.py`). `queued_tokens`, `streams`:
    at its backend when it was sent, itself included.
    """

    __slots__ = ("canary", "fresh", "key", "queued_tokens", "streams")

    def __init__(self, canary: Canary, client: str, key: int | None) -> None:
        self.canary = canary
        self.key = key
        self.fresh = canary.began(client, key)
        self.queued_tokens = self.streams = 0
