"""A simulated vLLM server, and what it answers on each path.

    server = await SimServer(profile="instant").start()
    ...                                  # requests to server.url
    await server.stop()

An endpoint that makes the engine work turns a body into a job and a dialect (`generation.py`).
`/sim/...` is what no real server has: faults are set and counters read over HTTP.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from penstock.bench.sim import pooling
from penstock.bench.sim.connection import PROMETHEUS, Reply, Request
from penstock.bench.sim.dialects import (
    Chat,
    Completions,
    Dialect,
    Identity,
    Messages,
    Responses,
    Spoken,
    Unstreamed,
    text_of,
)
from penstock.bench.sim.errors import DRAINING_MESSAGE, Refusal, busy, draining, invalid_field
from penstock.bench.sim.faults import Fault, FaultKind
from penstock.bench.sim.generation import Generation
from penstock.bench.sim.instance import Instance
from penstock.bench.sim.job import (
    Body,
    Job,
    chat_batch_job,
    chat_job,
    completions_job,
    messages_job,
    parse_body,
    responses_input,
    responses_job,
)
from penstock.bench.sim.metrics import render
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.text import detokenize

VERSION: Final = "0.32.0"
# What an encoder like Whisper's makes of a window of 30 s.
AUDIO_TOKENS: Final = 1_500

Handler = Callable[[Instance, Request, Reply], None]
# What a handler of the engine's makes of a body: the work, and how it is told.
Asked = tuple[Job, Dialect]
Ask = Callable[[Instance, Request, Body], Asked]


class SimServer(Instance):
    """An instance that answers on vLLM's paths, and on `/sim/...`."""

    def dispatch(self, request: Request, reply: Reply) -> None:
        """Answer a request, now or, through the engine, later."""
        path = request.path
        if path not in _PROBES:
            self.seen.append(request)
            if request.method == "POST":
                reply.apply(self.faults.take_all(path))
        try:
            if path.startswith(_GUARDED) and not self._authorized(request):
                reply.whole(401, b'{"error":"Unauthorized"}')
            elif not _strike(reply):
                _handler(request)(self, request, reply)
        except Refusal as refusal:
            # Bodies that fail validation get OpenAI's shape on every path.
            anthropic = path.startswith("/v1/messages") and refusal.kind != "Bad Request"
            vary = anthropic or refusal.message != DRAINING_MESSAGE
            reply.whole(refusal.status, refusal.body(anthropic=anthropic), vary=vary)

    def _authorized(self, request: Request) -> bool:
        if self.api_key is None:
            return True
        scheme, _, key = request.header("authorization").partition(" ")
        return scheme.lower() == "bearer" and key == self.api_key


def _strike(reply: Reply) -> bool:
    """Apply the faults that come before any handler; True when nothing is left to do."""
    faults = reply.faults
    reply.muted = FaultKind.HANG_BEFORE_HEADERS in faults
    if FaultKind.EARLY_HINTS in faults:
        reply.raw(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n")
    cut = faults.get(FaultKind.CUT_BEFORE_HEADERS)
    if cut is not None:
        reply.cut(rst=cut.rst)
        return True
    if FaultKind.INTERNAL_ERROR in faults:
        raise Refusal(500, "Internal Server Error", "InternalServerError")
    if FaultKind.BUSY in faults:
        raise busy()
    return False


def send(reply: Reply, value: Any) -> None:
    reply.whole(200, orjson.dumps(value))


# What never waits for the engine -----------------------------------------------------------


def _health(server: Instance, request: Request, reply: Reply) -> None:
    if not server.faults.take(FaultKind.HEALTH_HANG, request.path):
        failing = server.faults.take(FaultKind.HEALTH_503, request.path)
        reply.whole(503 if failing else 200, b"")


def _models(server: Instance, request: Request, reply: Reply) -> None:
    permission = {
        "id": f"modelperm-{server.name}",
        "object": "model_permission",
        "created": server.created,
        "allow_create_engine": False,
        **dict.fromkeys(("allow_sampling", "allow_logprobs"), True),
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
    adapters = [
        card | {"id": name, "root": path, "parent": server.model, "max_model_len": None}
        for name, path in server.adapters.paths.items()
    ]
    send(reply, {"object": "list", "data": [card, *adapters]})


def _prometheus(server: Instance, request: Request, reply: Reply) -> None:
    reply.whole(200, render(server), PROMETHEUS)


def _version(server: Instance, request: Request, reply: Reply) -> None:
    send(reply, {"version": VERSION})


def _load(server: Instance, request: Request, reply: Reply) -> None:
    send(reply, {"server_load": server.generations})


def _reset_prefix_cache(server: Instance, request: Request, reply: Reply) -> None:
    """What vLLM has with VLLM_SERVER_DEV_MODE=1."""
    server.engine.cache.forget()
    reply.whole(200, b"")


def _tokenize(server: Instance, request: Request, reply: Reply) -> None:
    body = _body(server, request)
    prompt = body.get("prompt")
    found = Prompt.from_text(prompt) if isinstance(prompt, str) else chat_job(body).prompts[0]
    ids = found.token_ids()
    about = {"count": len(ids), "max_model_len": server.max_model_len}
    send(reply, about | {"tokens": ids, "token_strs": None})


def _detokenize(server: Instance, request: Request, reply: Reply) -> None:
    ids = _body(server, request).get("tokens")
    if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
        raise invalid_field("tokens")
    send(reply, {"prompt": detokenize(ids).decode(errors="replace")})


def _count_tokens(server: Instance, request: Request, reply: Reply) -> None:
    tokens = messages_job(_body(server, request)).prompt_tokens
    context = {"original_input_tokens": tokens}
    send(reply, {"input_tokens": tokens, "context_management": context})


def _stored_response(server: Instance, request: Request, reply: Reply) -> None:
    send(reply, server.responses.get(request.path.split("/")[3])[0])


def _cancel_response(server: Instance, request: Request, reply: Reply) -> None:
    """POST /v1/responses/{id}/cancel: every stored answer is finished, so it is too late."""
    server.responses.get(request.path.split("/")[3])
    message = "Cannot cancel a synchronous response."
    raise Refusal(400, message, "invalid_request_error", "response_id")


def _load_adapter(server: Instance, request: Request, reply: Reply) -> None:
    """There is no such endpoint unless vLLM was told to load LoRA adapters at run time."""
    adapters = server.adapters
    if not adapters.enabled:
        _unknown(server, request, reply)
        return
    body = parse_body(request.header("content-type"), request.body)
    name, path = body.get("lora_name"), body.get("lora_path")
    if not name or not path:
        message = "Both 'lora_name' and 'lora_path' must be provided."
        raise Refusal(400, message, "InvalidUserInput")
    if name in adapters.paths:
        message = f"The lora adapter '{name}' has already been loaded."
        raise Refusal(400, message, "InvalidUserInput")
    if path in adapters.missing:
        message = f"Loading lora {name} failed: No adapter found for {path}"
        raise Refusal(404, message, "NotFoundError")

    def loaded() -> None:
        adapters.paths[str(name)] = str(path)
        text = f"Success: LoRA adapter '{name}' added successfully."
        reply.whole(200, text.encode(), "text/plain; charset=utf-8")

    if adapters.load_s:
        later = asyncio.get_running_loop().call_later(adapters.load_s, loaded)
        reply.gone = later.cancel
    else:
        loaded()


def _set_faults(server: Instance, request: Request, reply: Reply) -> None:
    """POST: `{"set": [{"kind": "busy", "times": 1}, ...], "clear": true | [kinds]}`."""
    body = parse_body("application/json", request.body)
    cleared = body.get("clear")
    try:
        if cleared is True:
            server.faults.clear()
        elif isinstance(cleared, list) and cleared:
            server.faults.clear(*cleared)
        for options in body.get("set", []):
            server.faults.set(**options)
    except (TypeError, ValueError) as error:
        raise Refusal(400, str(error)) from None
    send(reply, {"faults": server.faults.listing()})


_COUNTED: Final = (
    *("running", "waiting", "kv_usage", "requests_total", "finished_total", "aborted_total"),
    *("prompt_tokens_total", "generation_tokens_total"),
    *("cache_queries_total", "cache_hits_total"),
)


def _state(server: Instance, request: Request, reply: Reply) -> None:
    """Counters of one server; `requests` are the last ones, oldest first."""
    about = {"name": server.name, "model": server.model, "profile": server.profile.name}
    counts = {name: getattr(server.engine, name) for name in _COUNTED}
    told = {
        "client_aborts_total": server.client_aborts_total,
        "busy_total": server.busy_total,
        "connections": len(server.connections),
        "connections_total": server.connections_total,
        "faults": server.faults.listing(),
        "requests": server.seen.listing(),
    }
    send(reply, about | counts | told)


# What the engine works for -----------------------------------------------------------------


def _body(server: Instance, request: Request) -> dict[str, Any]:
    body = parse_body(request.header("content-type"), request.body)
    server.check_model(body)
    return body


def _generate(server: Instance, request: Request, reply: Reply, asked: Asked) -> None:
    job, dialect = asked
    if FaultKind.DRAINING in reply.faults:
        # A draining vLLM refuses text with a 500, but answers token ids with nothing.
        if not all(prompt.by_ids for prompt in job.prompts):
            raise draining()
        kind = FaultKind.DONE_ONLY if job.stream else FaultKind.ABORT_EMPTY
        reply.apply({**reply.faults, kind: Fault(kind)})
    server.check_job(job)
    Generation(server, reply, job, dialect, request.header("x-request-id")).start()


def _generated(ask: Ask) -> Handler:

    def handler(server: Instance, request: Request, reply: Reply) -> None:
        body = _body(server, request)
        _generate(server, request, reply, ask(server, request, body))

    return handler


def _said(to_job: Callable[[Body], Job], dialect: Callable[[Identity, Job], Dialect]) -> Ask:
    """How an endpoint that answers with text is asked."""

    def ask(server: Instance, request: Request, body: Body) -> Asked:
        job = to_job(body)
        return job, dialect(server.identity(request, body), job)

    return ask


_chat: Final = _said(chat_job, Chat)
_completions: Final = _said(completions_job, Completions)


def _responses(server: Instance, request: Request, body: Body) -> Asked:
    previous = body.get("previous_response_id")
    earlier = [] if previous is None else server.responses.get(str(previous))[1]
    job = responses_job(body, earlier)
    conversation = earlier + responses_input(body)

    def keep(response: dict[str, Any], text: str) -> None:
        if body.get("store") is not False:
            said = {"role": "assistant", "content": text}
            server.responses.put(response, [*conversation, said])

    return job, Responses(server.identity(request, body), job, previous, keep)


def _pooled(to_job: Callable[[Body], Job], shape: pooling.Shape) -> Handler:
    """The handler of an endpoint that answers with numbers."""

    def ask(server: Instance, request: Request, body: Body) -> Asked:
        identity = server.identity(request, body)
        dialect = Unstreamed(lambda choices: shape(identity, choices, body))
        return to_job(body), dialect

    return _generated(ask)


def _invocations(server: Instance, request: Request, reply: Reply) -> None:
    """Whatever API the body is for; its `model` is not read."""
    body = parse_body(request.header("content-type"), request.body)
    body["model"] = request.header("x-amzn-sagemaker-adapter-identifier") or None
    server.check_model(body)
    if isinstance(body.get("messages"), list):
        asked = _chat(server, request, body)
    elif "prompt" in body:
        asked = _completions(server, request, body)
    else:
        identity = server.identity(request, body)
        dialect = Unstreamed(lambda choices: pooling.pooling(identity, choices, body))
        asked = pooling.inputs_job(body), dialect
    _generate(server, request, reply, asked)


def _transcription(server: Instance, request: Request, reply: Reply) -> None:
    """Any multipart body: all of it but the boundary, which varies, is the prompt."""
    boundary = request.header("content-type").rpartition("boundary=")[2].strip('"').encode()
    audio = request.body.replace(boundary, b"") if boundary else request.body

    def transcript(choices: Sequence[Spoken]) -> dict[str, Any]:
        return {"text": text_of(choices[0]), "usage": {"type": "duration", "seconds": 1}}

    asked = Job([Prompt(audio, AUDIO_TOKENS)]), Unstreamed(transcript)
    _generate(server, request, reply, asked)


# Which path and method goes where ----------------------------------------------------------

_POSTS: Final[dict[str, Handler]] = {
    "/v1/chat/completions": _generated(_chat),
    # Conversations side by side, a choice for each; never streamed.
    "/v1/chat/completions/batch": _generated(_said(chat_batch_job, Chat)),
    "/v1/completions": _generated(_completions),
    "/v1/responses": _generated(_responses),
    "/v1/messages": _generated(_said(messages_job, Messages)),
    "/v1/messages/count_tokens": _count_tokens,
    "/v1/embeddings": _pooled(pooling.inputs_job, pooling.embeddings),
    "/v2/embed": _pooled(pooling.texts_job, pooling.cohere),
    "/generative_scoring": _pooled(pooling.items_job, pooling.scores),
    "/invocations": _invocations,
    "/pooling": _pooled(pooling.inputs_job, pooling.pooling),
    "/classify": _pooled(pooling.inputs_job, pooling.classes),
    **dict.fromkeys(("/score", "/v1/score"), _pooled(pooling.pairs_job, pooling.scores)),
    **dict.fromkeys(
        ("/rerank", "/v1/rerank", "/v2/rerank"), _pooled(pooling.pairs_job, pooling.ranking)
    ),
    "/v1/load_lora_adapter": _load_adapter,
    "/tokenize": _tokenize,
    "/detokenize": _detokenize,
    "/v1/audio/transcriptions": _transcription,
    "/ping": _health,
    "/reset_prefix_cache": _reset_prefix_cache,
    "/sim/faults": _set_faults,
}
_GETS: Final[dict[str, Handler]] = {
    "/health": _health,
    "/ping": _health,
    "/v1/models": _models,
    "/metrics": _prometheus,
    "/version": _version,
    "/load": _load,
    "/sim/state": _state,
}
_GUARDED: Final = ("/v1", "/v2", "/inference", "/cohere")
_PROBES: Final = frozenset(_GETS) | {"/sim/faults"}


def _handler(request: Request) -> Handler:
    path, method = request.path, request.method
    handler = (_POSTS if method == "POST" else _GETS if method == "GET" else {}).get(path)
    if handler is not None:
        return handler
    if path.startswith("/v1/responses/"):
        rest = path.split("/")[3:]
        if len(rest) == 1 and method == "GET":
            return _stored_response
        if len(rest) == 2 and rest[1] == "cancel" and method == "POST":
            return _cancel_response
    return _wrong_method if path in _POSTS or path in _GETS else _unknown


def _unknown(server: Instance, request: Request, reply: Reply) -> None:
    reply.whole(404, b'{"detail":"Not Found"}')


def _wrong_method(server: Instance, request: Request, reply: Reply) -> None:
    reply.whole(405, b'{"detail":"Method Not Allowed"}')
