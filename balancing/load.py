"""What one backend has to do, as far as is counted here. Only a `Lease` changes it."""


class Load:
    """Tokens and requests at one backend, as integers with a sequence number.

    `queued_prefill_tokens` (P): sent, not yet answered by a first token, less what the
    backend's prefix cache is thought to hold of them. `queued_work`: the same as work
    (`prefill_speed`).
    `active_decode_tokens` (K): prompt + generated tokens of requests past it.
    `streams` (N): requests past their first token. `requests`: all in flight;
    `engine_requests`: what the engine makes of them (prompts x choices each).
    `retries`: those that another engine failed before, not yet past their first token.
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
    def idle(self) -> bool:
        """All zeros: what every backend must come back to."""
        return not (
            self.queued_prefill_tokens
            or self.queued_work
            or self.active_decode_tokens
            or self.streams
            or self.requests
            or self.engine_requests
            or self.retries
        )
