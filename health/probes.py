"""Probes: what is asked of a backend to know that it lives, is ready and generates.

Live: `GET /health` answers 200. Ready: `GET /v1/models` lists what it serves,
which also tells the balancing where a model is. Deep: one token, or one
embedding, because vLLM's `/health` is 200 while its engine hangs, sleeps or
drains. Each is one request on a fresh connection, bounded in time and size; an
outcome is a value, never an exception.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import aiohttp
import orjson

BODY_BYTES_MAX: Final = 1_048_576
MODELS_MAX: Final = 1_024
# What vLLM answers between SIGTERM and its exit, while /health stays 200.
_DRAINING: Final = b"cannot schedule new futures after shutdown"
# How servers say that they do not have an endpoint for a model of this kind.
_NOT_DONE_HERE: Final = frozenset({400, 404, 405, 422, 501})

# A key that we do not have, or no such list: clients may fare better.
_NOT_TOLD: Final = frozenset({401, 403, 404, 405})
# Where the engine schedules by priority, before whatever others have queued there.
_FIRST: Final = {"content-type": "application/json", "x-vllm-priority": "-1000000"}


class Task(StrEnum):
    """What a backend does, as far as a deep probe can ask for it."""

    COMPLETION = "completion"
    EMBEDDING = "embedding"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a probe ended. `reason` is empty when it passed.

    `certain`: no second opinion is needed. `busy`: the backend has too much to
    do to answer, which says nothing of its health.
    """

    reason: str = ""
    certain: bool = False
    busy: bool = False
    models: dict[str, bytes] | None = None

    @property
    def passed(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: str
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes


class Prober:
    """Asks one backend over HTTP. `timeout_s` is for the whole of a question."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def live(self, timeout_s: float) -> Outcome:
        """Ask whether the server answers and believes its engine alive."""
        answer = await _ask(self._session, _Request("GET", self._url + "/health"), timeout_s)
        if isinstance(answer, Outcome):
            return answer
        return Outcome() if answer.status == 200 else Outcome(f"status_{answer.status}")

    async def ready(self, timeout_s: float) -> Outcome:
        """Ask which models are served; none is not ready. Where that is not told, any may be."""
        answer = await _ask(self._session, _Request("GET", self._url + "/v1/models"), timeout_s)
        if isinstance(answer, Outcome):
            return answer
        if answer.status in _NOT_TOLD:
            return Outcome()
        if answer.status != 200:
            return Outcome(f"status_{answer.status}")
        return _read_models(answer.body)

    async def deep(
        self, model: str, task: Task | None, timeout_s: float
    ) -> tuple[Task | None, Outcome]:
        """Have one token generated, or one text embedded.

        With no `task` known yet, find out which the backend does; the task
        returned is None while that cannot be told.
        """
        if task is Task.NONE:
            return task, Outcome()
        for each in (Task.COMPLETION, Task.EMBEDDING) if task is None else (task,):
            answer = await _ask(self._session, _work(self._url, model, each), timeout_s)
            if isinstance(answer, Outcome):
                return task, Outcome("hung") if answer.reason == "timeout" else answer
            if task is not None or answer.status not in _NOT_DONE_HERE:
                return each, _judge(answer)
        return Task.NONE, Outcome()


def _work(url: str, model: str, task: Task) -> _Request:
    """The least work of a kind. A token id needs no tokenizer, and 1 is in every vocabulary."""
    if task is Task.EMBEDDING:
        body = orjson.dumps({"model": model, "input": [1]})
        return _Request("POST", url + "/v1/embeddings", body)
    body = orjson.dumps({"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0})
    return _Request("POST", url + "/v1/completions", body)


def _judge(answer: _Answer) -> Outcome:
    if answer.status == 200:
        # vLLM answers token ids with an empty "abort" while it drains.
        aborted = b'"finish_reason":"abort"' in answer.body.replace(b" ", b"")
        return Outcome("draining", certain=True) if aborted else Outcome()
    if _DRAINING in answer.body:
        return Outcome("draining", certain=True)
    # Too many requests, a full queue, a key that we do not have: it works, for others.
    if answer.status < 500 or answer.status == 503:
        return Outcome(f"status_{answer.status}", busy=True)
    return Outcome("failing")


async def _ask(
    session: aiohttp.ClientSession, request: _Request, timeout_s: float
) -> _Answer | Outcome:
    """One request and its whole answer, or why there is none."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.request(
                request.method,
                request.url,
                data=request.body,
                headers=_FIRST if request.body else None,
                allow_redirects=False,
            ) as answer,
        ):
            body = b""
            while len(body) < BODY_BYTES_MAX and not answer.content.at_eof():
                body += await answer.content.read(BODY_BYTES_MAX - len(body))
            return _Answer(answer.status, body)
    except TimeoutError:
        return Outcome("timeout")
    except aiohttp.ClientSSLError:
        return Outcome("untrusted")  # its certificate, or no TLS at all
    except aiohttp.ClientConnectorError as error:
        return Outcome("unreachable", certain=isinstance(error.os_error, ConnectionRefusedError))
    except (aiohttp.ClientError, OSError, ValueError):
        return Outcome("unreachable")


def _read_models(body: bytes) -> Outcome:
    """The models of a /v1/models answer, each with its card."""
    try:
        cards = orjson.loads(body)["data"]
        models = {card["id"]: orjson.dumps(card) for card in cards[:MODELS_MAX]}
    except (ValueError, KeyError, TypeError):
        return Outcome("no_models")
    if not models or not all(isinstance(model, str) for model in models):
        return Outcome("no_models")
    return Outcome(models=models)
