"""`POST /api/v1/explain`: a choice as JSON. It holds nothing of the prompt itself."""

import asyncio
from time import monotonic
from typing import Final

import msgspec
from aiohttp import web

from penstock.balancing.ask import Ask
from penstock.balancing.explain import Candidate
from penstock.balancing.fields import NO_FIELD
from penstock.balancing.fleet import UnknownModel
from penstock.balancing.gate import Choice
from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps, T
from penstock.balancing.reader import NO_OBJECT, MalformedAsk
from penstock.proxy.admin.json_answers import error_answer, json_answer
from penstock.proxy.data.invocations import INVOCATIONS, invoked_path
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.reading import reading_ask
from penstock.proxy.errors.client import ModelNotFound


class _Given(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD
    input: msgspec.Raw = NO_FIELD


_given = msgspec.json.Decoder(_Given)

# A request to be explained may be as large as any. This many are in memory at once, and each body
# has this long to arrive.
BODIES_MAX: Final = 2
BODY_S: Final = 3.0


class Explanation:
    """The handler. It reserves and sends nothing."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._bodies = asyncio.Semaphore(BODIES_MAX)

    async def answer(self, request: web.Request) -> web.Response:
        """Tell where the request in the body would go. `path` and `tenant` say whose it is."""
        if self._bodies.locked():  # waiting would occupy one of the port's few connections
            return error_answer(429, "overloaded", "Other requests are being explained; retry.")
        try:
            async with self._bodies:
                async with asyncio.timeout(BODY_S):
                    body = await request.read()
                return await self._explained(request, body)
        except (TimeoutError, ConnectionError):  # or the client has left
            return error_answer(408, "request_timeout", "The body did not come in time.")

    async def _explained(self, request: web.Request, body: bytes) -> web.Response:
        plane = self._plane
        if not body:
            return error_answer(400, "invalid_request", NO_OBJECT)
        tenant = request.query.get("tenant", "")
        if tenant and all(tenant != each.name for each in plane.settings.tenants):
            return error_answer(
                404, "unknown_tenant", "No tenant of this name is configured; see `tenants`."
            )
        path = request.query.get("path", "")
        if not path:
            path = await _taken(path_of(body))
        if path.encode() == INVOCATIONS:
            path = (await _taken(invoked_path(body))).decode()
        endpoint = plane.paths.find(b"POST", path.encode())
        if endpoint is None:
            return error_answer(
                404,
                "not_proxied",
                "`path` must be a path that this proxy serves, such as ?path=/v1/completions.",
            )
        headers = [
            (name.lower(), value)
            for name, value in request.raw_headers
            if name.lower() != b"origin"
        ]
        try:
            ask = await _taken(reading_ask(plane, path, endpoint, headers, body, tenant))
            choice = plane.gate.explain(ask, monotonic())
        except MalformedAsk as error:
            return error_answer(400, "invalid_request", str(error))
        except UnknownModel:
            return error_answer(404, "model_not_found", str(ModelNotFound(ask.model)))
        policies = {pool.name: pool.policy for pool in plane.settings.pools}
        return json_answer(render(ask, choice, policies.get(choice.pool or "")))


def path_of(body: bytes) -> Steps[str]:
    """The path that a body was most likely written for. Each path has a key of its own."""
    try:
        given = yield from members(body, _given)
    except NoObject:
        given = _Given()
    if given.messages is NO_FIELD and given.prompt is not NO_FIELD:
        return "/v1/completions"
    if given.messages is NO_FIELD and given.input is not NO_FIELD:
        return "/v1/responses"
    return "/v1/chat/completions"


def render(ask: Ask, choice: Choice, policy: str | None) -> dict[str, object]:
    """The request as it was understood, and every candidate with its costs in seconds.

    `policy` is the name of the pool's policy.
    """
    return {
        "pool": choice.pool,
        "policy": policy,
        "chosen": choice.chosen,
        "reason": choice.reason,
        "request": {
            "model": ask.model,
            "prompt_tokens": ask.prompt_tokens,
            "expected_output_tokens": round(ask.output_tokens),
            "blocks": len(ask.blocks),
            "session": ask.session is not None,
            "stream": ask.stream,
        },
        "candidates": [_candidate(each) for each in choice.candidates],
    }


def _candidate(candidate: Candidate) -> dict[str, object]:
    part = candidate.part
    return {
        "name": candidate.backend.name,
        "pool": candidate.pool,
        "eligible": not candidate.out,
        "why_not": candidate.out or part.why_not or None,
        "cost_s": round(part.cost_s, 6) if part.cost_s is not None else None,
        "terms": {name: round(term, 6) for name, term in part.terms.items()}
        if part.terms is not None
        else None,
        "cached_tokens": candidate.cached_tokens,
        "to_win": part.to_win or None,
    }


async def _taken(steps: Steps[T]) -> T:
    """Take all steps and return their result. Other work runs between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
