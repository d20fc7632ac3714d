"""The endpoints that make the engine work: each turns a body into a job and a dialect."""

from collections.abc import Callable
from typing import Any, Final

from penstock.bench.sim import pooling
from penstock.bench.sim.dialects.chat import Chat
from penstock.bench.sim.dialects.completions import Completions
from penstock.bench.sim.dialects.dialect import Dialect, text_of
from penstock.bench.sim.dialects.messages import Messages
from penstock.bench.sim.dialects.responses import Responses
from penstock.bench.sim.dialects.unstreamed import Unstreamed
from penstock.bench.sim.errors import Refusal, draining
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
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.reply import Reply
from penstock.bench.sim.request import Request

AUDIO_TOKENS: Final = 1_500
"""What an encoder like Whisper's makes of a window of 30 s."""

Handler = Callable[[Instance, Request, Reply], None]


def chat(server: Instance, request: Request, reply: Reply) -> None:
    body = _body(server, request)
    job = chat_job(body)
    _generate(server, request, reply, job, Chat(server.identity(request, body), job))


def chat_batch(server: Instance, request: Request, reply: Reply) -> None:
    """Conversations side by side, a choice for each; never streamed."""
    body = _body(server, request)
    job = chat_batch_job(body)
    _generate(server, request, reply, job, Chat(server.identity(request, body), job))


def invocations(server: Instance, request: Request, reply: Reply) -> None:
    """Whatever API the body is for; its `model` is not read."""
    body = parse_body(request.header("content-type"), request.body)
    body["model"] = request.header("x-amzn-sagemaker-adapter-identifier") or None
    server.check_model(body)
    identity = server.identity(request, body)
    if isinstance(body.get("messages"), list):
        job = chat_job(body)
        _generate(server, request, reply, job, Chat(identity, job))
    elif "prompt" in body:
        job = completions_job(body)
        _generate(server, request, reply, job, Completions(identity, job))
    else:
        dialect = Unstreamed(lambda choices: pooling.pooling(identity, choices, body))
        _generate(server, request, reply, pooling.inputs_job(body), dialect)


def completions(server: Instance, request: Request, reply: Reply) -> None:
    body = _body(server, request)
    job = completions_job(body)
    _generate(server, request, reply, job, Completions(server.identity(request, body), job))


def messages(server: Instance, request: Request, reply: Reply) -> None:
    body = _body(server, request)
    job = messages_job(body)
    _generate(server, request, reply, job, Messages(server.identity(request, body), job))


def responses(server: Instance, request: Request, reply: Reply) -> None:
    body = _body(server, request)
    previous = body.get("previous_response_id")
    earlier: list[Any] = []
    if previous is not None:
        kept = server.responses.get(str(previous))
        if kept is None:
            message = f"Response with id '{previous}' not found."
            raise Refusal(404, message, "invalid_request_error", "response_id")
        earlier = kept.conversation
    job = responses_job(body, earlier)
    conversation = earlier + responses_input(body)

    def keep(response: dict[str, Any], text: str) -> None:
        if body.get("store") is not False:
            said = {"role": "assistant", "content": text}
            server.responses.put(response, [*conversation, said])

    identity = server.identity(request, body)
    _generate(server, request, reply, job, Responses(identity, job, previous, keep))


def transcription(server: Instance, request: Request, reply: Reply) -> None:
    """Any multipart body: all of it but the boundary, which varies, is the prompt."""
    boundary = request.header("content-type").rpartition("boundary=")[2].strip('"').encode()
    audio = request.body.replace(boundary, b"") if boundary else request.body
    job = Job([Prompt(audio, AUDIO_TOKENS)])
    _generate(server, request, reply, job, Unstreamed(_transcript))


def pooled(to_job: Callable[[Body], Job], shape: pooling.Shape) -> Handler:
    """The handler of an endpoint that answers with numbers."""

    def handler(server: Instance, request: Request, reply: Reply) -> None:
        body = _body(server, request)
        identity = server.identity(request, body)
        dialect = Unstreamed(lambda choices: shape(identity, choices, body))
        _generate(server, request, reply, to_job(body), dialect)

    return handler


def _transcript(choices: list[Any]) -> dict[str, Any]:
    return {"text": text_of(choices[0]), "usage": {"type": "duration", "seconds": 1}}


def _body(server: Instance, request: Request) -> dict[str, Any]:
    body = parse_body(request.header("content-type"), request.body)
    server.check_model(body)
    return body


def _generate(server: Instance, request: Request, reply: Reply, job: Job, dialect: Dialect) -> None:
    _drain(reply, job)
    server.check_job(job)
    Generation(server, reply, job, dialect, request.header("x-request-id")).start()


def _drain(reply: Reply, job: Job) -> None:
    """A draining vLLM refuses text with a 500, but answers token ids with nothing."""
    if FaultKind.DRAINING not in reply.faults:
        return
    if not all(prompt.by_ids for prompt in job.prompts):
        raise draining()
    kind = FaultKind.DONE_ONLY if job.stream else FaultKind.ABORT_EMPTY
    reply.apply({**reply.faults, kind: Fault(kind)})
