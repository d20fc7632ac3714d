"""Which path and method goes where."""

from typing import Final

import orjson

from penstock.bench.sim import adapters, control, endpoints, generate, pooling
from penstock.bench.sim.errors import DRAINING_MESSAGE, Refusal, busy
from penstock.bench.sim.faults import FaultKind
from penstock.bench.sim.generate import Handler
from penstock.bench.sim.instance import Instance
from penstock.bench.sim.reply import Reply
from penstock.bench.sim.request import Request

_SCORE: Final = generate.pooled(pooling.pairs_job, pooling.scores)
_RERANK: Final = generate.pooled(pooling.pairs_job, pooling.ranking)

_POSTS: Final[dict[str, Handler]] = {
    "/v1/chat/completions": generate.chat,
    "/v1/chat/completions/batch": generate.chat_batch,
    "/v1/completions": generate.completions,
    "/v1/responses": generate.responses,
    "/v1/messages": generate.messages,
    "/v1/messages/count_tokens": endpoints.count_tokens,
    "/v1/embeddings": generate.pooled(pooling.inputs_job, pooling.embeddings),
    "/v2/embed": generate.pooled(pooling.texts_job, pooling.cohere),
    "/generative_scoring": generate.pooled(pooling.items_job, pooling.scores),
    "/invocations": generate.invocations,
    "/pooling": generate.pooled(pooling.inputs_job, pooling.pooling),
    "/classify": generate.pooled(pooling.inputs_job, pooling.classes),
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/v1/load_lora_adapter": adapters.load,
    "/tokenize": endpoints.tokenize,
    "/detokenize": endpoints.detokenize,
    "/v1/audio/transcriptions": generate.transcription,
    "/ping": endpoints.health,
    "/reset_prefix_cache": endpoints.reset_prefix_cache,
    "/sim/faults": control.faults,
}
_GETS: Final[dict[str, Handler]] = {
    "/health": endpoints.health,
    "/ping": endpoints.health,
    "/v1/models": endpoints.models,
    "/metrics": endpoints.prometheus,
    "/version": endpoints.version,
    "/load": endpoints.load,
    "/sim/state": control.state,
}
_GUARDED: Final = ("/v1", "/v2", "/inference", "/cohere")
_PROBES: Final = frozenset(_GETS) | {"/sim/faults"}


def dispatch(server: Instance, request: Request, reply: Reply) -> None:
    """Answer a request, now or, through the engine, later."""
    path = request.path
    if path not in _PROBES:
        server.seen.append(request)
        if request.method == "POST":
            reply.apply(server.faults.take_all(path))
    try:
        if (
            server.api_key is not None
            and path.startswith(_GUARDED)
            and not _authorized(server, request)
        ):
            reply.whole(401, b'{"error":"Unauthorized"}')
        elif not _strike(reply):
            _handler(request)(server, request, reply)
    except Refusal as refusal:
        # Bodies that fail validation get OpenAI's shape on every path.
        anthropic = path.startswith("/v1/messages") and refusal.kind != "Bad Request"
        reply.whole(
            refusal.status,
            refusal.body(anthropic=anthropic),
            vary=anthropic or refusal.message != DRAINING_MESSAGE,
        )


def _authorized(server: Instance, request: Request) -> bool:
    scheme, _, key = request.header("authorization").partition(" ")
    return scheme.lower() == "bearer" and key == server.api_key


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


def _handler(request: Request) -> Handler:
    path, method = request.path, request.method
    handler = (_POSTS if method == "POST" else _GETS if method == "GET" else {}).get(path)
    if handler is not None:
        return handler
    if path.startswith("/v1/responses/"):
        rest = path.split("/")[3:]
        if len(rest) == 1 and method == "GET":
            return endpoints.stored_response
        if len(rest) == 2 and rest[1] == "cancel" and method == "POST":
            return endpoints.cancel_response
    return _wrong_method if path in _POSTS or path in _GETS else _unknown


def _unknown(server: Instance, request: Request, reply: Reply) -> None:
    reply.whole(404, orjson.dumps({"detail": "Not Found"}))


def _wrong_method(server: Instance, request: Request, reply: Reply) -> None:
    reply.whole(405, orjson.dumps({"detail": "Method Not Allowed"}))
