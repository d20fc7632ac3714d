"""Answers without a backend: the fleet's health, its models, CORS, and errors of requests."""

from typing import Final

import orjson

from penstock.proxy.data.account import count, refused
from penstock.proxy.data.aliases import alias_cards
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.client import Client
from penstock.proxy.data.endpoints import dialect_of, speaks_anthropic
from penstock.proxy.data.model_list import is_of_models, models_told
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.dialects import POOLING
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.errors.own import Draining
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import RequestHead

_JSON: Final[Headers] = [(b"content-type", b"application/json")]

_ROOT: Final = b'{"message":"This is penstock. Its APIs are below /v1; GET /health tells more."}'


def answer_here(plane: DataPlane, head: RequestHead, answer: Answer) -> None:
    """Answer a request that needs no backend. Raises a PenstockError."""
    status, body, headers = 200, b"", _JSON
    serves = any(backend.can_serve for backend in plane.fleet.backends)
    if head.method == b"OPTIONS":
        status, headers = 204, []
    elif head.path == b"/":
        body = _ROOT
    elif is_of_models(head.path):
        if not serves:
            raise plane.refusals.no_backend()
        allowed = plane.budgets.models_of(head.tenant)
        aliases = alias_cards(plane.routes, plane.fleet, head.tenant)
        anthropic = speaks_anthropic(head)
        body = models_told(head.path, plane.fleet.pools, allowed, aliases, anthropic=anthropic)
    elif plane.draining or not serves:
        error = Draining() if plane.draining else plane.refusals.no_backend()
        status, body = error.status, orjson.dumps({"status": error.code})
        headers = [*headers, *error.headers]
    else:
        body = b'{"status":"ok"}'
    answer.whole(status, headers, body)
    count(plane, status)


def refuse_here(
    plane: DataPlane, head: RequestHead | None, answer: Answer, error: PenstockError, client: Client
) -> None:
    """Answer with an error, in the shape of the request's API. `head`: None if unreadable."""
    dialect = dialect_of(head) if head is not None else POOLING
    answer.fail(error, dialect.error_body(error))
    refused(plane, head, answer, error, client)
