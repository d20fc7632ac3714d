"""The probes: what a backend is asked to show that it lives, is ready and generates.

Live: `GET /health` answers 200. Ready: `GET /v1/models` lists the models that it serves; the choice
of backends uses the list, too, and so does whoever has an adapter loaded. Deep: one token or one
embedding, because vLLM's `/health` answers 200 while its engine hangs, sleeps or drains. Each probe
is one request, limited in time and size, on a new connection for each turn. Its outcome is a value,
never an exception. `proxy.wire.questions` implements the HTTP client, as far as it is known here.
"""

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

import orjson

from penstock.balancing.engine_report import EngineReport
from penstock.health.engine import read_models, read_version
from penstock.health.scrape import METRICS, METRICS_BYTES_MAX, TooLarge, read_report


class Answer(Protocol):
    """A status and a body, or the `reason` why there is none."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def whole(self) -> bool:
        """Whether nothing of the body was cut."""

    @property
    def reason(self) -> str: ...
    @property
    def certain(self) -> bool:
        """Nobody listens there."""

    @property
    def own(self) -> bool:
        """The process could not ask, which says nothing of the backend."""


class Client(Protocol):
    """Asks one backend, below the path of its URL. A question may be cancelled."""

    async def get(self, path: bytes, timeout_s: float, limit_bytes: int = ...) -> Answer:
        """The answer to a GET, cut at a limit."""

    async def post(
        self,
        path: bytes,
        body: bytes,
        timeout_s: float,
        fields: bytes = ...,
        limit_bytes: int = ...,
    ) -> Answer:
        """The answer to a JSON body. `fields` are more header lines."""

    def hang_up(self) -> None:
        """End the connection. The next question opens a new one."""


class Connections(Protocol):
    """How a backend is reached. `proxy.wire.pool.ConnectionPool` implements it."""

    @property
    def tls(self) -> object:
        """What verifies the certificate of an https backend."""

    def questions(self, authorization: bytes | None = None) -> Client:
        """A client with this key, on a connection of its own."""


# The limit for an answer whose body is not read.
STATUS_BYTES_MAX: Final = 4_096
# The limit for the answer to a deep probe. An embedding of 8,192 numbers has 180 KB.
WORK_BYTES_MAX: Final = 262_144
# What vLLM answers between SIGTERM and its exit, while /health stays 200.
_DRAINING: Final = b"cannot schedule new futures after shutdown"
# The statuses with which servers say that they have no such endpoint for this kind of model.
_NOT_DONE_HERE: Final = frozenset({400, 404, 405, 422, 501})

LOAD_ADAPTER: Final = b"/v1/load_lora_adapter"
# What vLLM answers that was started without VLLM_ALLOW_RUNTIME_LORA_UPDATING.
_NO_ENDPOINT: Final = b'{"detail":"Not Found"}'

KEY_REFUSED: Final = frozenset({401, 403})
# The pool has no valid key, or there is no such path. Clients may have a valid key.
_NOT_TOLD: Final = KEY_REFUSED | {404, 405}
# Where the engine schedules by priority, the probe goes before all queued requests.
_FIRST: Final = b"x-vllm-priority: -1000000\r\n"


class Task(StrEnum):
    """A kind of work that a deep probe can ask for, by its path."""

    COMPLETION = "/v1/completions"
    EMBEDDING = "/v1/embeddings"
    NONE = ""


# The least that an engine can do. A token id needs no tokenizer, and 1 is in every vocabulary.
_WORK: Final[dict[Task, dict[str, object]]] = {
    Task.COMPLETION: {"prompt": [1], "max_tokens": 1, "temperature": 0},
    Task.EMBEDDING: {"input": [1]},
}


@dataclass(slots=True)
class LastProbe:
    """How the last probe of a level went, for the operator."""

    at_unix_s: float
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a probe ended. `reason` is empty when it passed.

    `certain`: no second probe is needed. `busy`: the backend is too busy to answer, which
    says nothing about its health. `own`: the proxy could not ask (no descriptor, no
    memory), which says nothing about the backend.
    """

    reason: str = ""
    certain: bool = False
    busy: bool = False
    own: bool = False
    models: dict[str, bytes] | None = None
    contexts: dict[str | None, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.reason


class Prober:
    """Asks one backend over HTTP. `timeout_s` limits each question as a whole."""

    def __init__(self, client: Client, *, keyed: bool = False) -> None:
        """`keyed`: the pool's own key is sent. Then a refused key is a failure."""
        self._client = client
        self._keyed = keyed

    async def live(self, timeout_s: float) -> Outcome:
        """Ask whether the server answers and believes that its engine is alive."""
        answer = await self._client.get(b"/health", timeout_s, STATUS_BYTES_MAX)
        if answer.reason:
            return _unheard(answer)
        if self._refused(answer):
            return Outcome("refusing")
        return Outcome() if answer.status == 200 else Outcome(f"status_{answer.status}")

    async def ready(self, timeout_s: float) -> Outcome:
        """Ask for the models. An empty list is not ready. Without a list any may be served."""
        answer = await self._client.get(b"/v1/models", timeout_s)
        if answer.reason:
            return _unheard(answer)
        if self._refused(answer):
            return Outcome("refusing")
        if answer.status in _NOT_TOLD:
            return Outcome()
        if answer.status != 200:
            return Outcome(f"status_{answer.status}")
        if not answer.whole:
            return Outcome("too_large")
        try:
            models, contexts = await read_models(answer.body)
        except TooLarge:
            return Outcome("too_large")
        except ValueError:
            return Outcome("no_models")
        return Outcome(models=models, contexts=contexts)

    async def deep(
        self, model: str, task: Task | None, timeout_s: float
    ) -> tuple[Task | None, Outcome]:
        """Have one token generated, or one text embedded.

        With `task` None, find out which task the backend does. The task in the result is
        None while that is unknown.
        """
        if task is Task.NONE:
            return task, Outcome()
        for each in _WORK if task is None else (task,):
            work = orjson.dumps({"model": model, **_WORK[each]})
            path = each.value.encode()
            answer = await self._client.post(path, work, timeout_s, _FIRST, WORK_BYTES_MAX)
            if answer.reason:
                hung = answer.reason == "timeout"
                return task, Outcome("hung") if hung else _unheard(answer)
            if self._refused(answer):
                return task, Outcome("refusing")
            if task is not None or answer.status not in _NOT_DONE_HERE:
                return each, _judge(answer)
        return Task.NONE, Outcome()

    async def load_adapter(self, name: str, path: str, load_s: float, timeout_s: float) -> Outcome:
        """Have an adapter loaded. Its own list then tells whether the backend has it.

        So an answer that it had it already is no failure, and a 200 alone is no success.
        """
        body = orjson.dumps({"lora_name": name, "lora_path": path})
        answer = await self._client.post(LOAD_ADAPTER, body, load_s)
        if answer.reason:
            return _unheard(answer)
        outcome = await self.ready(timeout_s)
        if not outcome.passed or name in (outcome.models or ()):
            return outcome
        if answer.status == 404 and answer.body.strip() == _NO_ENDPOINT:
            return Outcome("no_endpoint")
        return Outcome("not_listed" if answer.status == 200 else f"status_{answer.status}")

    async def report(self, timeout_s: float, now_s: float) -> EngineReport | None:
        """Read the engine's metrics. None where it has none."""
        answer = await self._client.get(METRICS, timeout_s, METRICS_BYTES_MAX)
        if answer.status != 200 or not answer.whole:
            return None
        try:
            return await read_report(answer.body, now_s, 0)
        except TooLarge:
            return None

    async def version(self, timeout_s: float) -> str | None:
        """Ask for the engine's version. Empty where none is told, None without an answer."""
        answer = await self._client.get(b"/version", timeout_s, STATUS_BYTES_MAX)
        if answer.reason:
            return None
        if answer.status == 200:
            return read_version(answer.body)
        return "" if answer.status in _NOT_TOLD else None

    def _refused(self, answer: Answer) -> bool:
        """Whether the backend refused the pool's own key."""
        return self._keyed and answer.status in KEY_REFUSED


def _judge(answer: Answer) -> Outcome:
    if answer.status == 200:
        # vLLM answers token ids with an empty "abort" while it drains.
        aborted = b'"finish_reason":"abort"' in answer.body[:STATUS_BYTES_MAX].replace(b" ", b"")
        return Outcome("draining", certain=True) if aborted else Outcome()
    if _DRAINING in answer.body:
        return Outcome("draining", certain=True)
    # Too many requests, a full queue, or a key that we do not have: it works for others. A server
    # that cannot do such work says so, too.
    if answer.status < 500 or answer.status in (501, 503):
        return Outcome(f"status_{answer.status}", busy=True)
    return Outcome("failing")


def _unheard(answer: Answer) -> Outcome:
    """What it means that there is no answer."""
    return Outcome(answer.reason, certain=answer.certain, own=answer.own)


logger = logging.getLogger(__name__)

_WHERE_TO_LOOK: Final = {
    "EMFILE": "ulimit -n",
    "ENFILE": "fs.file-max",
    "EADDRNOTAVAIL": "net.ipv4.ip_local_port_range and net.ipv4.tcp_tw_reuse",
}
TELL_S: Final = 60.0


class Shortage:
    """Logs that backends cannot be asked, at most once in `TELL_S` for all of them."""

    def __init__(self) -> None:
        self._told_s = float("-inf")

    def tell(self, reason: str, now_s: float) -> None:
        if now_s - self._told_s < TELL_S:
            return
        self._told_s = now_s
        logger.warning(
            "backends cannot be asked, which says nothing of them reason=%s (see %s)",
            reason,
            _WHERE_TO_LOOK.get(reason, "the kernel's memory"),
        )
