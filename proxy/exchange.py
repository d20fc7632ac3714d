"""The life of one request: peek, choose, attempt, try elsewhere, account.

It decides; bytes move in the relay. It has no task: each step runs in the turn
of the loop that brought its cause, so a request is upstream before the loop
looks at the next one (a task cost two more turns a request, 7 % of its CPU).
Whatever happens, the lease is ended, the request is counted and logged once,
and the client has either a whole answer or one that shows that it is not.
"""

import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.fields import UNREADABLE
from balancing.fleet import UnknownModel
from balancing.gate import ForeignResponse, NoBackend, OwnerAway
from balancing.lease import Lease
from balancing.peek import NO_OBJECT, MalformedAsk
from balancing.poison import died_of_it
from balancing.tokens import NOTHING, Measure
from conf.settings import TimeoutSettings
from proxy.access_log import AccessLog
from proxy.answer import Answer
from proxy.attempt import Attempt
from proxy.counting import Count
from proxy.dialects.dialect import Usage
from proxy.edit import with_usage_asked
from proxy.errors import (
    BackendError,
    BadRequest,
    InternalFault,
    ModelNotFound,
    NotHere,
    OutOfTime,
    PenstockError,
    PoisonRequest,
    ResponseNotFound,
    StreamBroken,
)
from proxy.heads import RequestHead
from proxy.log_lines import printable
from proxy.metrics import Histogram, PoolMetrics
from proxy.paths import Route
from proxy.patience import patience
from proxy.relay import EventRelay, Relay

if TYPE_CHECKING:
    from proxy.listener import ClientConnection
    from proxy.plane import DataPlane

logger = logging.getLogger(__name__)

# Attempts that may have cost an engine work; refused connections cost nothing
# and are limited by the number of backends.
ATTEMPTS_MAX: Final = 3
# As long as any hint of our own; a backend may hint a day.
HINT_S_MAX: Final = 59.0
# Engines that die on one request before it is taken for the cause.
DEATHS_MAX: Final = 2


class Exchange:
    """One request and its answer. Read by its attempts."""

    __slots__ = (
        "_attempt",
        "_attempts",
        "_began_s",
        "_client",
        "_count",
        "_deaths",
        "_ended",
        "_error",
        "_failure",
        "_hint_s",
        "_lease",
        "_phase",
        "_plane",
        "_reached",
        "_received_s",
        "_sent_s",
        "_tried",
        "_without",
        "answer",
        "ask",
        "begin_by_s",
        "body",
        "head",
        "hides_usage",
        "hold_s",
        "out_of_time_s",
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
        self._lease: Lease | None = None
        self._error: PenstockError | None = None
        self._failure: BackendError | None = None  # the last attempt's
        self._tried: set[Backend] = set()
        self._without: set[Backend] = set()  # said that they do not hold what is asked for
        self._sent_s: float | None = None
        self._attempts = 0
        self._reached = 0  # attempts that may have cost an engine work
        self._deaths = 0  # engines that died with it
        self._hint_s = inf  # the shortest Retry-After that a backend gave
        self._ended = False
        self._phase = "queued"
        self.head = head
        self.route = route
        self.answer = answer
        self.body = body
        self.peer = client.peer
        self.paused = False
        self.hides_usage = False
        self.ask = Ask(head.path.decode("ascii"))
        self.timeouts: TimeoutSettings = plane.settings.timeouts
        self.hold_s = self._received_s + self.timeouts.hold_s
        begun_s, whole_s = patience(head.headers)
        total_s = min(self.timeouts.total_s or inf, whole_s or inf)
        self.out_of_time_s = self._began_s + total_s
        self.begin_by_s = self._began_s + begun_s if begun_s else inf

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
        self._peek()
        if self._plane.poison.holds(self.ask.path, self.body, self._received_s):
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
                self.ask, monotonic(), self._tried, retry=self._reached > 0
            )
        except UnknownModel:
            raise ModelNotFound from None
        except OwnerAway:
            raise self._plane.out_of_reach() from None
        except ForeignResponse:
            raise ResponseNotFound from None
        except NoBackend:
            raise self._nobody() from None
        self._try(self._lease)

    def _nobody(self) -> PenstockError:
        """Why nobody serves it: a response is unknown only if all who may hold it said so."""
        if self._without:
            all_said = self._plane.gate.may_hold(self.ask) <= self._without
            return ResponseNotFound() if all_said else self._plane.out_of_reach()
        return self._failed_by_all() if self._failure else self._plane.no_backend()

    def _attempted(self, error: BackendError | None) -> None:
        lease = self._lease
        assert lease is not None
        now_s = monotonic()
        if error is None:
            self._answered(lease, now_s)
            return
        self._failure = error
        self._failed(error, now_s)
        self._reached += error.reached
        self._deaths += error.fatal and died_of_it(lease, now_s)
        if self._deaths >= DEATHS_MAX:
            self._plane.poison.add(self.ask.path, self.body, now_s)
            logger.warning("poison request request_id=%s", self.answer.request_id.decode())
            raise PoisonRequest
        if not self._may_go_on(lease, error, now_s):
            raise self._failed_by_all()
        lease.end(now_s)
        self._tried.add(lease.backend)
        self._next()

    def _may_go_on(self, lease: Lease, error: BackendError, now_s: float) -> bool:
        """Whether another backend may try what this one failed. Raises OutOfTime."""
        if not error.retryable or self._reached >= ATTEMPTS_MAX:
            return False
        if isinstance(error, NotHere):
            return True
        if lease.bound:
            if error.reached:
                return False
            raise self._plane.out_of_reach()
        if now_s >= min(self.out_of_time_s, inf if self.answer.started else self.begin_by_s):
            raise OutOfTime
        if error.reached and not self._plane.gate.may_retry(lease.backend, now_s):
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
        status = relay.status if relay is not None else 0
        if status == 500:
            self._failed(InternalFault(), now_s)
        else:
            self._plane.metrics.attempts.add("ok")
            if status == 429 and relay is not None:
                lease.turned_away(now_s, relay.hint_s)
            usage = relay.usage if relay is not None else None
            lease.complete(now_s, usage.completion_tokens if usage is not None else 0)
        self._end(None)

    def _end(self, error: PenstockError | None) -> None:
        """The one end of all: no more bytes, a free engine, a free lease, one account."""
        if self._ended:
            return
        self._ended = True
        if self._count is not None:
            self._count.cancel()
            self._count = None
        attempt = self._attempt
        if attempt is not None:
            attempt.abort()
        try:
            if self._lease is not None:
                self._lease.end(monotonic())
            if error is not None and not self.answer.finished:
                self._fail(error)
            self._account()
        finally:
            self._attempt = None  # they know each other: only the collector would free them
            self._client.answered(self.answer)

    def _peek(self) -> None:
        """Read what the request wants, and have usage reported where it streams."""
        route = self.route
        try:
            self.ask = self._plane.ask_of(
                self.ask.path, route, self.head.headers, self.body, self.head.tenant
            )
        except MalformedAsk as error:
            raise BadRequest(str(error)) from None
        if route.first_pool:
            return
        if self.head.method == b"POST" and not self.body and not route.anywhere:
            raise BadRequest(NO_OBJECT)
        if self.ask.stream and route.dialect.asks_usage and not self.ask.wants_usage:
            self.hides_usage = True
            try:
                self.body = with_usage_asked(self.body, self.ask)
            except UNREADABLE:  # a value that the peek passed over
                raise BadRequest(NO_OBJECT) from None

    def _try(self, lease: Lease) -> None:
        self._attempts += 1
        self._phase = "connect"
        backend = lease.backend
        self.answer.about = [
            (b"x-penstock-backend", backend.name.encode()),
            (b"x-penstock-attempts", b"%d" % self._attempts),
            (b"x-penstock-reason", lease.reason.encode()),
        ]
        # By the configuration that chose the backend: another may be in use once it is dialled.
        plane = self._plane
        self._attempt = Attempt(
            self, lease, plane.connections[backend.name], plane.credentials[backend.pool]
        )
        self._attempt.begin()

    def _failed(self, error: BackendError, now_s: float) -> None:
        lease = self._lease
        assert lease is not None
        self._plane.metrics.attempts.add(error.reason)
        if isinstance(error, NotHere):
            self._without.add(lease.backend)
            return
        if isinstance(error, StreamBroken):
            self._plane.metrics.stream_failures.add(error.reason)
        if error.hint_s:
            self._hint_s = min(self._hint_s, error.hint_s)
        current = lease.fail(
            now_s,
            suspicious=error.suspicious,
            penal=error.penal,
            doubtful=error.doubtful,
            hint_s=error.hint_s,
        )
        if current:
            self._plane.failed(lease.backend, error.of_backend)

    def _fail(self, error: PenstockError) -> None:
        """Tell the client, in whatever way is still open."""
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
        lease = self._lease
        relay = self._relay
        usage = relay.usage if relay is not None else None
        # 499, as nginx logs it: the client left before there was a status.
        status = self.answer.status or 499
        pool = self._pool_metrics
        pool.request(lease.backend.name if lease else "", status, now_s - self._began_s)
        if lease is not None:
            if isinstance(relay, EventRelay) and lease.first_token_s is not None:
                pool.ttft_s.observe(lease.first_token_s - self._began_s)
            self._plane.placed(lease)
        if usage is not None:
            self._learn(usage, pool)
            pool.prompt_tokens += usage.prompt_tokens
            pool.completion_tokens += usage.completion_tokens
            pool.cached_tokens += usage.cached_tokens or 0
        if self._plane.access_log is not None:
            self._log(self._plane.access_log, status, usage, now_s)

    def _log(self, log: AccessLog, status: int, usage: Usage | None, now_s: float) -> None:
        lease, ask = self._lease, self.ask
        first_s = lease.first_token_s if lease is not None else None
        line = self._plane.line(self.head, self.answer, self.peer, status)
        line["error"] = self._error.code if self._error else None
        line["whole"] = self.answer.finished
        known = ask.model is not None and lease is not None and lease.backend.lists(ask.model)
        line["model"] = printable(ask.model or "") if known else None
        line["backend"] = lease.backend.name if lease is not None else None
        line["attempts"] = self._attempts
        line["stream"] = ask.stream
        line["duration_ms"] = int((now_s - self._began_s) * 1e6) / 1000
        line["ttft_ms"] = int((first_s - self._began_s) * 1e6) / 1000 if first_s else None
        line["prompt_tokens"] = usage.prompt_tokens if usage else None
        line["completion_tokens"] = usage.completion_tokens if usage else None
        log.write(line)

    def _learn(self, usage: Usage, pool: PoolMetrics) -> None:
        """Compare what was expected with the backend's own counts and calibrate by them."""
        ask, lease, prompt_tokens = self.ask, self._lease, usage.prompt_tokens
        if lease is not None:
            lease.settle(prompt_tokens, usage.cached_tokens)
        if ask.generates and usage.completion_tokens and self.answer.finished:
            tokens = usage.completion_tokens / (ask.prompts * ask.choices)
            self._plane.outputs.observe(ask.tenant, ask.model, ask.path, ask.max_tokens, tokens)
        if not prompt_tokens or ask.measured == NOTHING:
            return
        self._plane.metrics.estimate_ratio.observe(ask.prompt_tokens / prompt_tokens)
        self._plane.estimator.observe(
            ask.model, ask.measured, prompt_tokens, ask.media_parts, ask.counted
        )
