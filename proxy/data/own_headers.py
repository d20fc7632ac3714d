"""Headers that penstock adds: to an answer its id, the backend and CORS, to a request its id."""

import asyncio
import re
from collections.abc import Collection
from secrets import token_hex
from typing import Final

from penstock.balancing.lease import Lease
from penstock.conf.listen import ListenSettings
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import RequestHead

_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
# Headers of answers that pages may read. By name: browsers take `*` only without credentials.
_EXPOSED: Final = (
    b"retry-after, retry-after-ms, x-should-retry, x-request-id, request-id, server-timing, "
    b"x-penstock-backend, x-penstock-attempts, x-penstock-reason, x-penstock-model, "
    b"x-penstock-priority, x-penstock-degraded, x-ratelimit-limit-requests, "
    b"x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    b"x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
    b"anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining, "
    b"anthropic-ratelimit-requests-reset, anthropic-ratelimit-tokens-limit, "
    b"anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset"
)
_ORIGINS_PORT: Final = re.compile(r":[0-9]{1,5}$")
MESSAGES_PATH: Final = b"/v1/messages"
# The longest part of a client's id that is sent on. With its suffix the id still fits a path.
UPSTREAM_ID_BYTES_MAX: Final = 64


def answer_to(plane: DataPlane, transport: asyncio.Transport, head: RequestHead | None) -> Answer:
    """Make the answer to a request. `head` is None when the request could not be read."""
    request_id = head.get(b"x-request-id") if head is not None else None
    if not request_id or not _REQUEST_ID.fullmatch(request_id):
        request_id = b"%032x" % plane.rng.getrandbits(128)
    headers = _cors(plane.listen, head) if plane.listen.cors_origins else []
    if head is not None and head.path.startswith(MESSAGES_PATH):
        headers = [*headers, (b"request-id", request_id)]  # where Anthropic's SDK looks
    answer = Answer(transport, head, request_id, headers)
    answer.keep_alive = answer.keep_alive and not plane.draining
    return answer


def budget_headers(plane: DataPlane, head: RequestHead) -> Headers:
    """What is left of its tenant's budgets, in the words of the API."""
    anthropic = head.path.startswith(MESSAGES_PATH)
    return plane.budgets.headers(head.tenant, plane.now(), anthropic=anthropic)


def headers_upstream(plane: DataPlane, request: Request) -> Headers:
    """What penstock adds to the head for a backend: the request id, the priority of its class, and
    its place in a trace.

    vLLM derives the id of a stored response from it. With tenants, nobody may guess or choose an
    id of another tenant. So it differs each time it is sent.
    """
    request_id, priority = request.answer.request_id, request.priority
    if plane.settings.tenants:
        request_id = request_id[:UPSTREAM_ID_BYTES_MAX] + b"-" + token_hex(8).encode()
    told = [(b"x-request-id", request_id)]
    if priority:
        told.append((b"x-vllm-priority", priority))
    trace = request.trace
    if trace is not None:
        told += trace.headers_for(request.record.tries[-1], plane.rng)
    return told


def origin(plane: DataPlane, lease: Lease, request: Request) -> Headers:
    """The headers that tell which backend answers, at which attempt and why, and the class if
    that is not the default one."""
    attempt = (b"x-penstock-attempts", b"%d" % request.record.attempts)
    reason = (b"x-penstock-reason", lease.reason.encode())
    told = [attempt, reason]
    if plane.listen.backend_header:
        told = [(b"x-penstock-backend", lease.backend.name.encode()), attempt, reason]
    way, model = request.way, request.ask.model
    if way is not None and model is not None and model != way.asked:
        told.append((b"x-penstock-model", model.encode()))
    if request.service_class:
        told.append((b"x-penstock-priority", request.service_class))
    return told


def _cors(listen: ListenSettings, head: RequestHead | None) -> Headers:
    """What lets a page of a listed origin read the answer."""
    origins = listen.cors_origins
    if head is None:
        return []
    origin = head.get(b"origin")
    if origin is None or not ("*" in origins or _is_listed(origin.decode("latin-1"), origins)):
        return []
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (
            b"access-control-allow-headers",
            head.get(b"access-control-request-headers") or b"authorization, content-type",
        ),
        (b"access-control-expose-headers", _EXPOSED),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
    ]


def _is_listed(origin: str, origins: Collection[str]) -> bool:
    """Whether an origin is listed, as it is or with any port: `http://localhost:*`."""
    return origin in origins or _ORIGINS_PORT.sub("", origin) + ":*" in origins
