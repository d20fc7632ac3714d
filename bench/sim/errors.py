"""Errors as vLLM words and shapes them."""

from http import HTTPStatus
from json import dumps
from typing import Any, Final

import orjson

BUSY_MESSAGE: Final = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
DEAD_MESSAGE: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DRAINING_MESSAGE: Final = "cannot schedule new futures after shutdown"


class Refusal(Exception):
    """A request that gets an error for its answer."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    def openai(self) -> dict[str, Any]:
        about = {"message": self.message, "type": self.kind}
        return {"error": about | {"param": self.param, "code": self.status}}

    def body(self, *, anthropic: bool = False) -> bytes:
        """The JSON body of an answer with this status."""
        if anthropic:
            error = {"type": self.kind, "message": self.message}
            return orjson.dumps({"type": "error", "error": error})
        return orjson.dumps(self.openai())

    def event(self) -> bytes:
        """The error inside a 200 stream; vLLM writes this one with spaces after the colons."""
        return f"data: {dumps(self.openai())}\n\n".encode()


def busy() -> Refusal:
    return Refusal(503, BUSY_MESSAGE, HTTPStatus(503).phrase)


def draining() -> Refusal:
    return Refusal(500, DRAINING_MESSAGE, "InternalServerError")


def engine_error(status: int) -> Refusal:
    """What a request already accepted gets when the engine cannot serve it after all."""
    return busy() if status == 503 else Refusal(status, DEAD_MESSAGE, "InternalServerError")


def prompt_too_long(tokens: int, limit: int) -> Refusal:
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains "
        f"{tokens} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt."
    )
    return Refusal(400, message, param="input_tokens")


def invalid_field(field: str, problem: str = "Field required") -> Refusal:
    message = f"1 validation error:\n  {{'loc': ('body', '{field}'), 'msg': '{problem}'}}"
    return Refusal(400, message, "Bad Request", f"body.{field}")
