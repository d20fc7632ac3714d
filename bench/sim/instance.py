"""One vLLM that is simulated: its engine behind a port, its faults, what it counts and remembers.

How a request is answered is not here: `SimServer` says that, and what answers knows an instance.

There are no tasks: requests, engine steps and disconnects are callbacks on one loop, so state
changes never interleave. Several instances run in one process.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from random import Random
from typing import Any, Final, Self

from penstock.bench.sim.connection import Connection, Reply, Request
from penstock.bench.sim.dialects import Identity
from penstock.bench.sim.engine import Engine
from penstock.bench.sim.errors import Refusal, busy, prompt_too_long
from penstock.bench.sim.faults import FaultKind, Faults
from penstock.bench.sim.job import Body, Job, Manner
from penstock.bench.sim.listener import Listener
from penstock.bench.sim.profiles import PROFILES, Profile
from penstock.bench.sim.pump import Pump

RESPONSES_MAX: Final = 1_024
SEEN_MAX: Final = 64
WORK_MAX: Final = 2_048


@dataclass(slots=True)
class Adapters:
    """LoRA adapters of one instance. `enabled`: it loads them at run time.

    `paths`: of those that are loaded, by name. `missing`: paths at which there is none.
    """

    enabled: bool = False
    paths: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    load_s: float = 0.0


class ResponseStore:
    """Finished /v1/responses by id, each with the conversation up to its end. The oldest go."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[dict[str, Any], list[Any]]] = OrderedDict()

    def put(self, response: dict[str, Any], conversation: list[Any]) -> None:
        self._kept[response["id"]] = response, conversation
        if len(self._kept) > RESPONSES_MAX:
            self._kept.popitem(last=False)

    def get(self, response_id: str) -> tuple[dict[str, Any], list[Any]]:
        """The response and its conversation. Raises Refusal."""
        kept = self._kept.get(response_id)
        if kept is None:
            message = f"Response with id '{response_id}' not found."
            raise Refusal(404, message, "invalid_request_error", "response_id")
        return kept


@dataclass(frozen=True, slots=True)
class Work:
    """What one request took of the engine. `whole`: it had all of its answer."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    whole: bool


class Seen(deque[Request]):
    def __init__(self) -> None:
        super().__init__(maxlen=SEEN_MAX)

    def listing(self) -> list[dict[str, Any]]:
        return [
            {
                "line": request.line,
                "headers": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in request.headers],
                "body_bytes": len(request.body),
                "body_sha256": sha256(request.body).hexdigest(),
            }
            for request in self
        ]


class Instance(ABC):
    """One instance. `speedup` divides every engine duration; `name` and `seed` make its ids."""

    def __init__(
        self,
        name: str = "sim",
        profile: Profile | str = "default",
        model: str = "sim-model",
        *,
        speedup: float = 1.0,
        seed: int = 0,
        api_key: str | None = None,
        max_queued: int | None = None,
        force_usage: bool = False,
        keep_alive_s: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self.model = model
        self.api_key = api_key
        self.max_queued = max_queued
        self.force_usage = force_usage
        self.keep_alive_s = keep_alive_s
        self.clock = clock
        self.created = int(clock())
        self.engine = Engine(self.profile, Random(f"{name} {seed}"))
        self.pump = Pump(self.engine, speedup)
        self.faults = Faults(self._listen_or_refuse)
        self.adapters = Adapters()
        self.manner = Manner()
        self.responses = ResponseStore()
        self.seen = Seen()
        self.work = deque[Work](maxlen=WORK_MAX)
        self.generations = 0  # that have not ended
        self.connections: set[Connection] = set()
        self.connections_total = self.client_aborts_total = self.busy_total = 0
        self._listener = Listener(lambda: Connection(self))
        self._emptied = asyncio.Event()
        self._running = False
        self._seed = seed
        self._ids = 0
        self._fingerprint = f"vllm-0.32.0-{_digest(self.profile, model)[:8]}"

    @property
    def port(self) -> int:
        assert self._listener.port, "not started yet"
        return self._listener.port

    @property
    def url(self) -> str:
        return f"http://{self._listener.host}:{self.port}"

    @property
    def max_model_len(self) -> int:
        return self.profile.context_tokens

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> Self:
        """Listen; port 0 takes a free one."""
        self._running = True
        self._listener.open(host, port)
        self._listen_or_refuse()
        return self

    async def stop(self) -> None:
        """Close the listener and every connection; return when both are gone."""
        self._running = False
        await self._listener.closed()
        for connection in tuple(self.connections):
            connection.abort()
        if self.connections:
            await self._emptied.wait()
        self.pump.stop()

    def drop_connections(self, *, rst: bool = False) -> None:
        """End every open connection, as the death of the process would."""
        for connection in tuple(self.connections):
            connection.abort(rst=rst)

    # Called by connections.

    def connected(self, connection: Connection) -> None:
        self.connections.add(connection)
        self._emptied.clear()
        self.connections_total += 1

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._emptied.set()

    @abstractmethod
    def dispatch(self, request: Request, reply: Reply) -> None:
        """Answer a request, now or, through the engine, later."""

    # Called by endpoints.

    def identity(self, request: Request, body: Body | None = None) -> Identity:
        """The id of an answer: the client's, or a new one that no other server makes."""
        self._ids += 1
        request_id = request.header("x-request-id")
        if not request_id:
            request_id = _digest(self.name, self._seed, self.port, self._ids)
        asked = str((body or {}).get("model"))
        model = asked if asked in self.adapters.paths else self.model
        return Identity(request_id, int(self.clock()), model, self._fingerprint)

    def check_model(self, body: Body) -> None:
        model = body.get("model")
        if model is not None and model != self.model and str(model) not in self.adapters.paths:
            message = f"The model `{model}` does not exist. Valid aliases: {self.model}."
            raise Refusal(404, message, "NotFoundError", "model")

    def check_job(self, job: Job) -> None:
        """Refuse what vLLM refuses before its 200, and bring the rest within its limits."""
        limit = self.max_model_len
        longest = max(prompt.tokens for prompt in job.prompts)
        if longest + min(1, job.max_tokens) > limit:
            raise prompt_too_long(longest, limit)
        if job.max_tokens > limit:
            message = f"{job.limit_field}={job.max_tokens} cannot be greater than {limit}."
            raise Refusal(400, message, param=job.limit_field)
        self.manner.apply(job, limit)
        queued = self.engine.running + self.engine.waiting
        if self.max_queued is not None and queued >= self.max_queued:
            self.busy_total += 1
            raise busy()
        if self.force_usage:
            job.include_usage = job.continuous_usage = True

    def _listen_or_refuse(self) -> None:
        if not self._running or self.faults.active(FaultKind.REFUSE):
            self._listener.close()
        else:
            self._listener.reopen()


def _digest(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()
