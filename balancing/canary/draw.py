"""How one request came to a version of its route, and what was there then."""

from penstock.balancing.ask import Ask
from penstock.balancing.canary.ended import Ended, Ending
from penstock.balancing.canary.steps import Canary
from penstock.balancing.canary.waits import is_watched
from penstock.balancing.lease import Lease


class Draw:
    """One request's lot. `key`: the hash that drew it, None if it was drawn for it alone.

    `fresh`: its client could not know the version (`fresh_keys.py`). `queued_tokens`, `streams`:
    at its backend when it was sent, itself included. `told`: its judge knows already that it
    waits far too long, so its end tells nothing more.
    """

    __slots__ = (
        "_ask",
        "_lease",
        "_on_canary",
        "canary",
        "fresh",
        "key",
        "queued_tokens",
        "sent_s",
        "streams",
        "told",
    )

    def __init__(self, canary: Canary, ask: Ask, key: int | None) -> None:
        self.canary = canary
        self.key = key
        self.fresh = canary.began(ask.client, key)
        self.queued_tokens = self.streams = 0
        self.told = False
        self._ask = ask
        self._lease: Lease | None = None
        self._on_canary = False
        self.sent_s = 0.0

    def sent(self, lease: Lease, *, on_canary: bool) -> None:
        """It is sent to a backend of its version, maybe after another one has failed."""
        backend = lease.backend
        self.queued_tokens, self.streams = backend.queued_prefill_tokens, backend.streams
        self._lease, self._on_canary, self.sent_s = lease, on_canary, lease.began_s
        if is_watched(self._ask):
            self.canary.sent(self)

    @property
    def waits(self) -> bool:
        """Whether it waits for its first token, or its plain answer."""
        lease = self._lease
        return lease is not None and not lease.ended and lease.first_token_s is None

    def waiting(self, now_s: float) -> Ended:
        """It as one that has waited in vain so far."""
        ask = self._ask
        return Ended(
            Ending.HUNG,
            canary=self._on_canary,
            client=ask.client,
            key=self.key,
            fresh=self.fresh,
            prompt_tokens=ask.prompt_tokens,
            stream=ask.stream,
            queued_tokens=self.queued_tokens,
            streams=self.streams,
            waited_s=now_s - self.sent_s,
        )
