"""The life of one request: peek, choose, attempt, try elsewhere, account.

It decides; bytes move in the relay. It has no task: each step runs in the turn
of the loop that brought its cause, so a request is upstream before the loop
looks at the next one (a task cost two more turns a request, 7 % of its CPU).
Whatever happens, the lease is ended, the request is counted and logged once,
and the client has either a whole answer or one that shows that it is not.
"""

import logging
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from balancing.accusers import Cause
from balancing.ask import Ask
from balancing.backend import Backend
from balancing.deaths import Suspect, died_of_it, is_leaving
from balancing.fleet import UnknownModel
from balancing.gate import NoBackend, OwnerAway, UnknownResponse
from balancing.lease import Lease
from balancing.poison import Mark, mark_of
from balancing.refused_prompts import LARGE_TOKENS
from balancing.tokens import NOTHING, Measure
from conf.settings import TimeoutSettings
from proxy.access_line import add_request
from proxy.answer import Answer
from proxy.attempt import Attempt
from proxy.calibration import believable, calibrate
from proxy.complaint import complain, settle
from proxy.counting import Count
from proxy.edit import Edit
from proxy.errors import (
    AnswerBare,
    BackendError,
    InternalFault,
    ModelNotFound,
    NotHere,
    PenstockError,
    PoisonRequest,
    ResponseNotFound,
    StreamBroken,
    StreamOutOfClientTime,
)
from proxy.event_relay import EventRelay, may_be_bare
from proxy.heads import RequestHead
from proxy.metrics import Histogram, PoolMetrics
from proxy.paths import Route
from proxy.patience import Patience
from proxy.reading import Wanted, wanted
from proxy.relay import Relay

if TYPE_CHECKING:
    from proxy.listener import ClientConnection
    from proxy.plane import DataPlane

logger = logging.getLogger(__name__)

# Attempts that may have cost an engine work; refused connections cost nothing
# and are limited by the number of backends.
ATTEMPTS_MAX: Final = 3
# As long as any hint of our own; a backend may hint a day.
HINT_S_MAX: Final = 59.0


class Exchange:
    """One request and its answer. Read by its attempts."""

    __slots__ = (
        "_attempt",
        "_attempts",
        "_began_s",
        "_client",
        "_count",
        "_ended",
        "_error",
        "_failure",
        "_hint_s",
        "_known_mark",
        "_lease",
        "_phase",
        "_plane",
        "_reached",
        "_reading",
        "_received_s",
        "_sent_s",
        "_suspect",
        "_tried",
        "_without",
        "answer",
        "ask",
        "bare",
        "body",
        "edit",
        "head",
        "hides_usage",
        "hold_s",
        "patience",
        "paused",
        "peer",
        "route",
        "timeouts",
    )

    def __init__(
        self,
        plane: "DataPlane",
        client: "ClientConnection",
        head: RequestHead,
        route: Route,
        answer: Answer,
        body: bytes,
    ) -> None:
        self._plane = plane
        self._client = client
        self._received_s = monotonic()
        self._began_s = client.began_s
        self._attempt: Attempt | None = None
        self._count: Count | None = None
        self._reading: Iterator[Wanted | None] | None = None
        self._lease: Lease | None = None
        self._known_mark: Mark | None = None
        self._error: PenstockError | None = None
        self._failure: BackendError | None = None  # the last attempt's
        self._tried: set[Backend] = set()
        self._without: set[Backend] = set()  # said that they do not hold what is asked for
        self._sent_s: float | None = None
        self._attempts = self._reached = 0  # reached: may have cost an engine work
        self._suspect: Suspect | None = None  # once an engine died with it
        self._hint_s = inf  # the shortest Retry-After that a backend gave
        self._ended = False
        self._phase = "queued"
        self.head = head
        self.route = route
        self.answer = answer
        self.body = body
        self.edit: Edit | None = None
        self.peer = client.peer
        self.paused = self.hides_usage = False
        self.bare: Relay | None = None  # the answer of a backend that had no token
        self.ask = Ask(head.path.decode("ascii"))
        self.timeouts: TimeoutSettings = plane.settings.timeouts
        self.hold_s = self._received_s + self.timeouts.hold_s
        self.patience = Patience(head.headers, self._began_s, self.timeouts.total_s)

    # What the client's connection tells ------------------------------------------------

    def begin(self) -> None:
        """Read what is wanted and send it on its way."""
        self.step(self._begin)

    def cancel(self) -> None:
        """The client left: whatever is under way for it ends now."""
        if not self._ended:
            self._plane.metrics.client_aborts.add(self._phase_now)
            self._end(None)

    def give_up(self, error: PenstockError) -> None:
        """The proxy ends it (the drain is over): tell the client, then let go."""
        self._end(error)

    def shed(self, reason: str) -> None:
        """A limit of the proxy's own ends it; no backend is at fault."""
        self._end(self._plane.overloaded(reason))

    def pause(self) -> None:
        """The client does not take what was written."""
        self.paused = True
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        self.paused = False
        if self._attempt is not None:
            self._attempt.resume()

    def slept(self, time_s: float) -> None:
        """The proxy did not run for so long: all times that are to come move on."""
        self.hold_s += time_s
        self.patience.slept(time_s)
        if self._attempt is not None:
            self._attempt.slept(time_s)

    # What the attempts ask -----------------------------------------------------------------

    @property
    def itl_s(self) -> Histogram:
        return self._pool_metrics.itl_s

    @property
    def anywhere(self) -> bool:
        """Whether it asks for something that one backend holds: a 404 sends it to the next."""
        return self.route.anywhere or self.ask.response_id is not None

    @property
    def request_id_upstream(self) -> bytes:
        return self._plane.request_id_upstream(self.answer.request_id)

    def begun(self) -> None:
        """The answer is on its way: no other backend can need the body, so nobody keeps it."""
        self._known_mark = self._mark
        self.body, self.edit = b"", None
        self._client.release_body()

    def made(self, response_id: str) -> None:
        """The backend answers with a stored response: whoever refers to it is sent there."""
        assert self._lease is not None
        self._plane.gate.owners.put(
            response_id, self._lease.backend.name, monotonic(), self.ask.tenant
        )

    def sent(self, now_s: float) -> None:
        """The request is on its way upstream."""
        self._phase = "prefill"
        if self._sent_s is None:
            self._sent_s = now_s
            self._plane.metrics.overhead_s.observe(now_s - self._received_s)

    def attempted(self, error: BackendError | None) -> None:
        """The attempt has ended: the answer was passed whole, or why it was not."""
        self.step(self._attempted, error)

    def step(self, step: Callable[..., None], *arguments: object) -> None:
        """Run one step; whatever it raises ends the exchange, told, counted and logged."""
        try:
            step(*arguments)
        except PenstockError as error:
            self._end(error)
        except Exception:  # the root of all steps: nothing may be lost in silence
            logger.exception("request failed request_id=%s", self.answer.request_id.decode())
            self._end(PenstockError())

    # The steps ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._reading = wanted(self._plane, self.head, self.route, self.body, self._client.party)
        if self._plane.rota.spares(len(self.body)):
            self._read_on()
        if self._reading is not None:
            self._plane.rota.add(self.head.tenant or self._client.party, self._read_more)

    def _read_more(self) -> bool:
        """Read a slice of a large body, if its client still waits; whether there is more."""
        over = self.patience.over(monotonic(), started=False)
        if over is not None:
            self._end(over)
        self.step(self._read_on)
        return self._reading is not None

    def _read_on(self) -> None:
        told = next(self._reading) if self._reading is not None else None
        if told is not None:
            self._reading = None
            self.ask, self.route, self.body, self.hides_usage, self.edit = told
            self._read()

    def _read(self) -> None:
        """It is known what the request wants."""
        if self._plane.poison.holds(self.ask.tenant, self.ask.path, self.body, self._received_s):
            self._plane.metrics.attempts.add("poison")
            raise PoisonRequest
        counting = self._plane.counting
        if counting is not None and self.ask.measured != NOTHING:
            self._count = counting.submit(self.body, self._counted)
        if self._count is None:
            self._next()

    def _counted(self, counted: Measure | None) -> None:
        """A tokenizer has counted the prompt, or could not: choose now."""
        self._count = None
        if counted is not None:
            self.ask = self.ask.with_count(counted, self._plane.estimator)
        self.step(self._next)

    def _next(self) -> None:
        """Choose a backend and reserve on it, and begin an attempt there."""
        self._phase = "queued"
        try:
            self._lease = self._plane.gate.choose(
                self.ask, monotonic(), self._tried, retry=self._reached > 0 and self.route.engine
            )
        except UnknownModel:
            raise ModelNotFound(self.ask.model) from None
        except OwnerAway:
            raise self._plane.out_of_reach() from None
        except UnknownResponse:
            raise ResponseNotFound from None
        except NoBackend:
            raise self._nobody() from None
        self._try(self._lease)

    def _nobody(self) -> PenstockError:
        """Why nobody serves it: a response is unknown only if all who may hold it said so."""
        if self._without:
            lost = self._plane.gate.is_lost(self.ask, self._without, monotonic())
            return ResponseNotFound() if lost else self._plane.out_of_reach()
        return self._failed_by_all() if self._failure else self._plane.no_backend()

    def _attempted(self, error: BackendError | None) -> None:
        lease = self._lease
        assert lease is not None
        now_s = monotonic()
        if error is None:
            self._answered(lease, now_s)
            return
        self._failure = error
        expected = error.fatal and is_leaving(lease.backend)  # before it is known to have failed
        cause = self._failed(error, now_s)
        self._reached += error.reached
        if self._attempt is not None and self._attempt.resent and error.reached:
            # Its first connection was not idle after all: that was an attempt of its own.
            self._attempts += 1
            self._reached += 1
            self.answer.about = self._plane.origin(lease, self._attempts)
        if error.fatal and self.route.engine and died_of_it(lease, now_s):
            self._died(lease, now_s, expected=expected)
        if not self._may_go_on(lease, error, cause, now_s):
            raise self._failed_by_all()
        lease.end(now_s)
        if self._suspect is not None:
            self._suspect.spared()
        self._tried.add(lease.backend)
        self._next()

    def _died(self, lease: Lease, now_s: float, *, expected: bool) -> None:
        """An engine died with it. Raises PoisonRequest where it is taken for the cause."""
        plane, ask = self._plane, self.ask
        if self._suspect is None:
            self._suspect = Suspect(hash((ask.tenant, self._mark)))
        if self._suspect.died(lease, plane.deaths, now_s, expected=expected):
            plane.poison.add(ask.tenant, self._mark, now_s)
            logger.warning("poison request request_id=%s", self.answer.request_id.decode())
            raise PoisonRequest

    def _may_go_on(self, lease: Lease, error: BackendError, cause: Cause, now_s: float) -> bool:
        """Whether another backend may try what this one failed. Raises when its time is over."""
        if not error.retryable or self._reached >= ATTEMPTS_MAX:
            return False
        if isinstance(error, AnswerBare):  # once more, if at all: a full fleet answers so too
            if self.bare is not None:
                return False
            self.bare = self._relay
        if isinstance(error, NotHere):
            if not self._plane.gate.may_search(self.ask, len(self.body), now_s):
                raise self._nobody()
            return True
        if lease.bound:
            if error.reached:
                return False
            raise self._plane.out_of_reach()
        over = self.patience.over(now_s, started=self.answer.started)
        if over is not None:
            raise over
        works = error.reached and self.route.engine
        if works and not self._plane.gate.may_retry(lease, cause, now_s):
            self._plane.metrics.attempts.add("over_budget")
            return False
        return True

    def _failed_by_all(self) -> BackendError:
        """The last failure as the client hears it, with the shortest wait that was hinted."""
        error = self._failure
        assert error is not None
        if self._hint_s < inf:
            error.retry_after_s = min(self._hint_s, HINT_S_MAX)
        return error

    def _answered(self, lease: Lease, now_s: float) -> None:
        """The answer was passed as it came; what it says of its backend counts all the same."""
        relay = self._relay
        assert relay is not None
        if relay.status == 500:
            self._failed(InternalFault(), now_s)
        else:
            self._plane.metrics.answered(refused_midway=relay.refused_midway)
            if relay.served and self._plane.poison:
                self._plane.poison.served(self._mark)
            settle(self._plane.gate, lease, relay, now_s, self._plane.failed)
        self._end(None)

    def _end(self, error: PenstockError | None) -> None:
        """The one end of all: no more bytes, a free engine, a free lease, one account."""
        if self._ended:
            return
        self._ended = True
        self._reading = None
        if self._count is not None:
            self._count.cancel()
            self._count = None
        if self._attempt is not None:
            self._attempt.abort()
        if self._suspect is not None:
            self._suspect.spared()
        try:
            if self._lease is not None:
                self._lease.end(monotonic())
            if error is not None and not self.answer.finished:
                self._fail(error)
            self._account()
        finally:
            self._attempt = None  # they know each other: only the collector would free them
            self.body = b""  # the rota may still know this
            self._client.answered(self.answer)

    def _try(self, lease: Lease) -> None:
        self._attempts += 1
        self._phase = "connect"
        backend = lease.backend
        self.answer.about = self._plane.origin(lease, self._attempts)
        if self._suspect is not None:
            self._suspect.sent(lease.backend.name)
        # By the configuration that chose the backend: another may be in use once it is dialled.
        plane = self._plane
        self._attempt = Attempt(
            self, lease, plane.connections[backend.name], plane.credentials[backend.pool]
        )
        self._attempt.begin()

    def _failed(self, error: BackendError, now_s: float) -> Cause:
        """Count a failure against whom it speaks; returns what explains it."""
        lease = self._lease
        assert lease is not None
        self._plane.metrics.attempts.add(error.reason)
        if isinstance(error, NotHere):
            self._without.add(lease.backend)
            return Cause.BACKEND
        if isinstance(error, StreamBroken) and not isinstance(error, StreamOutOfClientTime):
            self._plane.metrics.stream_failures.add(error.reason)
        self._hint_s = min(self._hint_s, error.hint_s or inf)
        asleep = self._plane.was_asleep(lease.began_s, now_s)
        return complain(self._plane.gate, lease, error, now_s, self._plane.failed, asleep=asleep)

    def _fail(self, error: PenstockError) -> None:
        """Tell the client, in whatever way is still open."""
        bare = self.bare if isinstance(error, BackendError) and may_be_bare(self.body) else None
        if isinstance(bare, EventRelay) and self._phase_now != "decode":
            bare.pass_bare()  # nobody has more to say
            return
        self._error = error
        dialect = self.route.dialect
        if isinstance(error, ResponseNotFound):
            self.answer.about = []  # not how far it was looked for: it may be another tenant's
        if not self.answer.started:
            self.answer.fail(error, dialect.error_body(error))
            return
        streamed = self.ask.stream or isinstance(self._relay, EventRelay)
        self.answer.break_off(dialect.error_event(error) if streamed else b"")

    # Accounting -------------------------------------------------------------------------------

    @property
    def _mark(self) -> Mark:
        """What its bytes are known by when they are gone."""
        return self._known_mark or mark_of(self.ask.path, self.body)

    @property
    def _relay(self) -> Relay | None:
        return self._attempt.relay if self._attempt is not None else None

    @property
    def _phase_now(self) -> str:
        relay = self._relay
        return "decode" if relay is not None and relay.committed else self._phase

    @property
    def _pool_metrics(self) -> PoolMetrics:
        return self._plane.metrics.of(self._lease.backend.pool if self._lease else "")

    def _account(self) -> None:
        """Count and log the request, once, however it ended."""
        now_s = monotonic()
        lease, relay = self._lease, self._relay
        usage = relay.usage if relay is not None else None
        status = self.answer.status or 499  # as nginx logs it: the client left before there was one
        pool = self._pool_metrics
        pool.request(lease.backend.name if lease else "", status, now_s - self._began_s)
        if lease is not None:
            if isinstance(relay, EventRelay) and lease.first_token_s is not None:
                pool.ttft_s.observe(lease.first_token_s - self._began_s)
            self._plane.placed(lease)
            if self.ask.prompt_tokens >= LARGE_TOKENS and lease.first_token_s is not None:
                self._plane.gate.computed(lease)
        if usage is not None:
            told, usage = usage, believable(usage, self.ask, lease, self.answer.body_bytes)
            if relay is not None and relay.served and usage is told:
                calibrate(self._plane, self.ask, lease, usage, whole=self.answer.finished)
            pool.prompt_tokens += usage.prompt_tokens
            pool.completion_tokens += usage.completion_tokens
            pool.cached_tokens += usage.cached_tokens or 0
        log = self._plane.access_log
        if log is not None:
            line = self._plane.line(self.head, self.answer, self.peer, status)
            line["error"] = self._error.code if self._error else None
            line["whole"] = self.answer.finished
            add_request(
                line, self.ask, lease, usage, self._attempts, began_s=self._began_s, now_s=now_s
            )
            log.write(line)
