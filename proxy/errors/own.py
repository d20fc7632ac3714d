"""Errors of the proxy: a limit is reached, no backend, a drain, a request that kills engines."""

from math import ceil
from typing import Final

from penstock.proxy.errors.error import PenstockError

HINT_MAX_S: Final = 59.0


class TooMuch(PenstockError):
    """More than is taken now. It may be sent again later."""

    status = 429
    code = "overloaded"
    kind = "rate_limit_error"


class Overloaded(TooMuch):
    message = "The proxy has reached one of its limits; retry after the seconds in Retry-After."
    closes = True

    def __init__(
        self,
        reason: str,
        message: str | None = None,
        *,
        retry_after_s: float,
        hopeless: bool = False,
    ) -> None:
        """`reason` names the limit, for metrics. `hopeless`: retries would only add load."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason = reason
        self.retry_helps = not hopeless


class TooLong(TooMuch):
    """All backends have so much to do that it would wait too long for its class."""

    def __init__(self, wait_s: float, *, retry_after_s: float) -> None:
        """`wait_s`: how long it would wait, or has waited."""
        super().__init__(
            f"All backends are busy: no first token within {wait_s:.1f} s; retry in"
            f" {ceil(retry_after_s)} s.",
            retry_after_s=retry_after_s,
        )


class TooLate(TooMuch):
    """It cannot begin in the time that its client allows."""

    code = "deadline"
    retry_helps = False

    def __init__(self, wait_s: float, *, retry_after_s: float) -> None:
        """`wait_s`: how long it would wait, or has waited."""
        super().__init__(
            f"No first token within {wait_s:.1f} s, and this client allows no more time; allow"
            f" more, or retry in {ceil(retry_after_s)} s.",
            retry_after_s=retry_after_s,
        )


class ContextTooLongNow(PenstockError):
    """So long a prompt is not taken while the backends have so much to do."""

    status = 413
    code = "context_too_long_now"
    kind = "invalid_request_error"

    def __init__(self, most_tokens: int, *, retry_after_s: float) -> None:
        super().__init__(
            f"The service is busy. For now it takes prompts of up to {most_tokens} tokens. Send a"
            f" shorter one, or retry in {ceil(retry_after_s)} s.",
            retry_after_s=retry_after_s,
        )


class RateLimited(TooMuch):
    """The tenant has used up one of its budgets."""

    code = "rate_limited"

    def __init__(self, limit: str, allowed: int, wait_s: float) -> None:
        """`limit`: its name in the configuration. `wait_s`: until the budget has room."""
        wait = f"{ceil(wait_s)} s" if wait_s < 120.0 else f"{ceil(wait_s / 60.0)} minutes"
        super().__init__(
            f"The budget of this key is used up: {limit} is {allowed}; retry in {wait}.",
            retry_after_s=wait_s,
        )
        # SDKs ignore longer hints, and would retry at once.
        self.retry_helps = wait_s <= HINT_MAX_S


class NoBackendReady(PenstockError):
    status = 503
    code = "no_backend"
    kind = "service_unavailable_error"
    message = "No backend can serve this now; retry after the seconds in Retry-After."


class Draining(PenstockError):
    status = 503
    code = "draining"
    kind = "service_unavailable_error"
    message = "This proxy is shutting down; retry on another one."
    closes = True

    def __init__(self) -> None:
        super().__init__(retry_after_s=1.0)


class PoisonRequest(PenstockError):
    """Engines died of this request, or of another one with the same bytes."""

    code = "poison_request"
    message = "Backends died while they worked on this request; do not send it again."
    retry_helps = False


class ResponseOutOfReach(NoBackendReady):
    """The backends asked do not hold the stored response. A backend out of reach may."""

    message = "The backend that may hold this response cannot be reached now; retry later."


class AdapterNotLoaded(NoBackendReady):
    """No backend has loaded the model's adapter, and it is not the time to ask again."""

    message = "No backend could load this model; retry after the seconds in Retry-After."
