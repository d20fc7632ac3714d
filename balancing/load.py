"""The load of one backend, as far as it is counted here. Only a `Lease` changes it."""

from typing import NamedTuple


class Counts(NamedTuple):
    """A load at one moment, as other replicas are told it."""

    queued_prefill_tokens: int
    queued_work: int
    active_decode_tokens: int
    streams: int
    requests: int
    engine_requests: int


class Load:
    """Tokens and requests at one backend, as integers with a sequence number.

    `queued_prefill_tokens` (P): prompt tokens of requests without a first token yet, less
    those that the backend's prefix cache probably holds. `queued_work`: the same tokens as
    prefill work (`prefill_speed`).
    `active_decode_tokens` (K): prompt and generated tokens of requests past their first token.
    `streams` (N): requests past their first token. `requests`: all requests in flight.
    `engine_requests`: what the engine makes of them (prompts x choices each).
    `retries`: requests that failed at another engine and have no first token yet.
    """

    __slots__ = (
        "active_decode_tokens",
        "engine_requests",
        "queued_prefill_tokens",
        "queued_work",
        "requests",
        "retries",
        "sequence",
        "streams",
    )

    def __init__(self) -> None:
        self.queued_prefill_tokens = 0
        self.queued_work = 0
        self.active_decode_tokens = 0
        self.streams = 0
        self.requests = 0
        self.engine_requests = 0
        self.retries = 0
        self.sequence = 0

    @property
    def counts(self) -> Counts:
        return Counts(
            self.queued_prefill_tokens,
            self.queued_work,
            self.active_decode_tokens,
            self.streams,
            self.requests,
            self.engine_requests,
        )

    @property
    def idle(self) -> bool:
        """Whether all counters are zero. Every backend must come back to this."""
        return not (
            self.queued_prefill_tokens
            or self.queued_work
            or self.active_decode_tokens
            or self.streams
            or self.requests
            or self.engine_requests
            or self.retries
        )
