"""Errors of a client: no backend is asked, and the status is 4xx."""

from collections.abc import Sequence
from typing import Final

from penstock.proxy.errors.error import PenstockError, quoted


class ClientError(PenstockError):
    """The request is at fault. No backend is asked."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"
    message = "The request is malformed."


class BadRequest(ClientError):
    """A body or path that cannot be routed. The connection can be used again."""


class MalformedHttp(ClientError):
    """HTTP that two parsers might read differently."""

    closes = True


SEVERAL_KEYS: Final = (
    "The API keys sent (Authorization, x-api-key, api-key) match no tenant, or several; send one"
    " valid key."
)


class Unauthorized(ClientError):
    """The key is missing, unreadable or unknown. The answer does not say which."""

    status = 401
    code = "unauthorized"
    kind = "authentication_error"
    message = "A valid API key is needed, as Authorization: Bearer KEY or as x-api-key: KEY."

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", b"Bearer")]


class UnknownPath(ClientError):
    status = 404
    code = "unknown_path"
    message = "penstock does not serve this path. An operator can add it with the key `paths`."


class MethodNotAllowed(ClientError):
    """The path is served, but not with this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, methods: Sequence[str]) -> None:
        self._allow = ", ".join(methods)
        super().__init__(f"This path takes {' or '.join(methods)}.")

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"allow", self._allow.encode())]


class ModelNotFound(ClientError):
    status = 404
    code = "model_not_found"
    message = "No pool serves this model; GET /v1/models lists what is served."

    def __init__(self, model: str | None) -> None:
        named = f": `{quoted(model)}`" if model else ""
        message = f"No pool serves this model{named}; GET /v1/models lists what is served."
        super().__init__(message, param="model")


class RouteRefused(ClientError):
    """A route refuses such requests, with the operator's own message."""

    status = 403
    code = "route_refused"
    kind = "permission_error"
    message = "A route refuses this request."


class FormWithoutModel(ClientError):
    """A route must put another model in a form that names none."""

    message = "Name a model: the form needs a text field `model`."


class ContextLengthExceeded(ClientError):
    code = "context_length_exceeded"

    def __init__(self, context_tokens: int) -> None:
        super().__init__(
            f"The prompt is far longer than the {context_tokens} tokens that this model takes;"
            " shorten it."
        )


class OverLimit(ClientError):
    """One request asks for more than its tenant may at once."""


class RequestTimeout(ClientError):
    status = 408
    code = "request_timeout"
    message = "The request was not complete in time; send all of it without pauses."
    closes = True


class BodyTooLarge(ClientError):
    status = 413
    code = "body_too_large"
    closes = True
    retry_helps = False

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is over the limit of {limit_bytes} bytes.")


class DecodedTooLarge(BodyTooLarge):
    """The same of a coded body, which has arrived: the connection goes on."""

    closes = False


class Unsupported(ClientError):
    """HTTP that is not spoken here."""

    status = 501
    code = "unsupported"
    closes = True


class UnsupportedEncoding(Unsupported):
    """The body has a content coding that is not decoded here."""

    status = 415

    def __init__(self, coding: bytes, taken: Sequence[bytes]) -> None:
        self._taken = b", ".join(taken)
        super().__init__(
            f"The content encoding `{quoted(coding.decode('latin-1'))}` is not taken here: send"
            f" {' or '.join([each.decode() for each in taken])}, or no Content-Encoding."
        )

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"accept-encoding", self._taken)]


class HeadersTooLarge(ClientError):
    status = 431
    code = "headers_too_large"
    retry_helps = False
    message = "The request's head is over the limit; send fewer or shorter headers."
    closes = True


class ExpectationFailed(Unsupported):
    status = 417
    message = "The only supported expectation is 100-continue."


class UpgradeRequired(Unsupported):
    status = 426
    message = "WebSocket is not supported here yet; use the HTTP endpoints."


class UnsupportedCoding(Unsupported):
    message = "The only supported transfer coding is chunked."


class UnsupportedVersion(Unsupported):
    status = 505
    message = "Use HTTP/1.1."


class ResponseNotFound(ClientError):
    """No backend holds the stored response."""

    status = 404

    def __init__(self, response_id: str | None) -> None:
        # The same first words as in vLLM's and OpenAI's message: clients search for them.
        named = f"Response with id '{quoted(response_id or '')}' not found"
        super().__init__(f"{named}: it may have expired, or its backend restarted.")
