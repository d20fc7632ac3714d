"""The endpoints that never wait for the engine."""

from typing import Any, Final

import orjson

from penstock.bench.sim.adapters import cards
from penstock.bench.sim.errors import Refusal, invalid_field
from penstock.bench.sim.faults import FaultKind
from penstock.bench.sim.instance import Instance
from penstock.bench.sim.job import chat_job, messages_job, parse_body
from penstock.bench.sim.metrics import render
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.reply import PROMETHEUS, Reply
from penstock.bench.sim.request import Request
from penstock.bench.sim.text import detokenize as text_of_ids

VERSION: Final = "0.32.0"


def health(server: Instance, request: Request, reply: Reply) -> None:
    if server.faults.take(FaultKind.HEALTH_HANG, request.path):
        return
    failing = server.faults.take(FaultKind.HEALTH_503, request.path)
    reply.whole(503 if failing else 200, b"")


def models(server: Instance, request: Request, reply: Reply) -> None:
    permission = {
        "id": f"modelperm-{server.name}",
        "object": "model_permission",
        "created": server.created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": server.model,
        "object": "model",
        "created": server.created,
        "owned_by": "vllm",
        "root": server.model,
        "parent": None,
        "max_model_len": server.max_model_len,
        "permission": [permission],
    }
    send(reply, {"object": "list", "data": [card, *cards(server, card)]})


def prometheus(server: Instance, request: Request, reply: Reply) -> None:
    reply.whole(200, render(server), PROMETHEUS)


def version(server: Instance, request: Request, reply: Reply) -> None:
    send(reply, {"version": VERSION})


def load(server: Instance, request: Request, reply: Reply) -> None:
    send(reply, {"server_load": server.generations})


def reset_prefix_cache(server: Instance, request: Request, reply: Reply) -> None:
    """What vLLM has with VLLM_SERVER_DEV_MODE=1."""
    server.engine.cache.forget()
    reply.whole(200, b"")


def tokenize(server: Instance, request: Request, reply: Reply) -> None:
    body = parse_body(request.header("content-type"), request.body)
    server.check_model(body)
    prompt = body.get("prompt")
    found = Prompt.from_text(prompt) if isinstance(prompt, str) else chat_job(body).prompts[0]
    ids = found.token_ids()
    answer = {
        "count": len(ids),
        "max_model_len": server.max_model_len,
        "tokens": ids,
        "token_strs": None,
    }
    send(reply, answer)


def detokenize(server: Instance, request: Request, reply: Reply) -> None:
    body = parse_body(request.header("content-type"), request.body)
    server.check_model(body)
    ids = body.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
        raise invalid_field("tokens")
    send(reply, {"prompt": text_of_ids(ids).decode(errors="replace")})


def count_tokens(server: Instance, request: Request, reply: Reply) -> None:
    body = parse_body(request.header("content-type"), request.body)
    server.check_model(body)
    tokens = messages_job(body).prompt_tokens
    answer = {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
    send(reply, answer)


def stored_response(server: Instance, request: Request, reply: Reply) -> None:
    """GET /v1/responses/{id}."""
    send(reply, _stored(server, request.path.split("/")[3]))


def cancel_response(server: Instance, request: Request, reply: Reply) -> None:
    """POST /v1/responses/{id}/cancel: every stored answer is finished, so it is too late."""
    _stored(server, request.path.split("/")[3])
    raise Refusal(
        400, "Cannot cancel a synchronous response.", "invalid_request_error", "response_id"
    )


def send(reply: Reply, value: Any) -> None:
    reply.whole(200, orjson.dumps(value))


def _stored(server: Instance, response_id: str) -> dict[str, Any]:
    kept = server.responses.get(response_id)
    if kept is None:
        message = f"Response with id '{response_id}' not found."
        raise Refusal(404, message, "invalid_request_error", "response_id")
    return kept.response
