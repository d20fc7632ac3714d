"""The life of one request: read, choose, attempt, fail over, account.

The exchange decides; the relay moves the bytes. An exchange has no task. Each step runs in the turn
of the loop that caused it (a task cost two more turns, 7 % of its CPU). In every case the lease
ends, the request is counted and logged once, and the client has a whole or a visibly broken answer.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from penstock.balancing.lease import Lease
from penstock.balancing.outline import LARGE_BYTES
from penstock.proxy.data.acceptance import decode, take_decoded
from penstock.proxy.data.account import ended, settle
from penstock.proxy.data.attempt import Attempt, AttemptOwner
from penstock.proxy.data.calibration import learn, remember
from penstock.proxy.data.client import Asker
from penstock.proxy.data.decoders import BOM, Decoding
from penstock.proxy.data.entry import Entry
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.failover import Failover, conclude
from penstock.proxy.data.inquiry import Inquiry
from penstock.proxy.data.mirroring import mirror, original_left
from penstock.proxy.data.own_headers import origin
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.reading import Wanted, reading_wanted, wanted
from penstock.proxy.data.relay import Relay
from penstock.proxy.data.request import Request
from penstock.proxy.errors.backend import BackendError, InternalFault, StreamBroken
from penstock.proxy.errors.client import ResponseNotFound
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.errors.own import PoisonRequest
from penstock.proxy.wire.deadline import Deadline, nothing

logger = logging.getLogger(__name__)

# Between two comments of a stream that waits for its first token.
PING_S: Final = 15.0
# Reading a smaller body costs no more than the rest of a request does.
SMALL_BYTES: Final = 8_192
# What reading a byte of a body costs the loop, where it costs most.
JSON_BYTE_S: Final = 16e-9


class Exchange(AttemptOwner):
    """One request and its answer."""

    def __init__(self, plane: DataPlane, asker: Asker, request: Request, clock: Deadline) -> None:
        """`clock` belongs to the client's connection. Its exchanges use it in turn."""
        self._plane = plane
        self._clock = clock
        self._asker = asker
        self._holder = asker.holder  # who is charged for it
        self.request = request
        self._failover = Failover(plane, request)
        self._entry = Entry(plane, request, self._failover, self._admitted)
        self._attempt: Attempt | None = None
        self._decoding: Decoding | None = None
        self._inquiry: Inquiry | None = None
        self._reading: Iterator[Wanted | None] | None = None
        self._lease: Lease | None = None
        self._ended = False
        self._phase = "queued"

    # What the client's connection tells ------------------------------------------------

    def begin(self) -> None:
        """Read what the request wants and send it."""
        self._clock.expired = self._tick
        self._plane.running.begin(self._holder, self.request.record.received_s)
        self.step(self._begin)

    def cancel(self) -> None:
        """End everything: the client has left. Some do once they have their stream's own end."""
        if not self._ended:
            relay = self._relay
            if relay is not None and relay.committed and relay.over and not self.request.paused:
                self.request.answer.finished = True
            else:
                self._plane.metrics.client_aborts.add("decode" if self._committed else self._phase)
            original_left(self.request)
            self._end(None)

    def give_up(self, error: PenstockError) -> None:
        """End the request because the drain is over. The client is told."""
        self._end(error)

    def pause(self) -> None:
        self.request.pause()
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        self.request.resume()
        if self._attempt is not None:
            self._attempt.resume()

    @property
    def behind_bytes(self) -> int:
        """What was read from the backend and waits, because the client takes less."""
        return self._attempt.behind_bytes if self._attempt is not None else 0

    def slept(self) -> None:
        """The proxy did not run for a while, so the times of this answer teach nothing."""
        if self._lease is not None:
            self._lease.held_up = True

    # What the attempts tell ----------------------------------------------------------------

    def step(self, step: Callable[..., None], *arguments: object) -> None:
        """Run one step. An exception ends the exchange: it is told to the client and logged."""
        try:
            step(*arguments)
        except PenstockError as error:
            self._end(error)
        except Exception:  # the root of all steps: no exception may get lost
            request_id = self.request.answer.request_id.decode()
            logger.exception("request failed request_id=%s", request_id)
            self._end(PenstockError())

    def sent(self, now_s: float) -> None:
        self._phase = "prefill"
        self.watch(now_s)

    def begun(self) -> None:
        self._mirror()
        self._plane.scheduler.free(self._holder, self.request.body)
        self._asker.release_body(self.request.forget_body())

    def watch(self, now_s: float) -> None:
        """Have the clock tick when something is due next."""
        request, attempt = self.request, self._attempt
        next_s = request.patience.next_s(started=request.answer.started)
        if attempt is not None:
            next_s = min(next_s, attempt.due_s(now_s))
        if request.ask.stream and not self._committed:
            next_s = min(next_s, request.hold_s)
        self._clock.set(next_s)

    def made(self, response_id: str) -> None:
        """Remember which backend stores the response: later requests for it go there."""
        assert self._lease is not None
        remember(self._plane, self.request, self._lease.backend, response_id)

    def attempted(self, error: BackendError | None) -> None:
        self.step(self._attempted, error)

    def shed(self, reason: str) -> None:
        self._end(self._plane.refusals.overloaded(reason))

    # The steps ------------------------------------------------------------------------------

    def _begin(self) -> None:
        request = self.request
        if request.body and (request.head.coding or request.body.startswith(BOM)):
            then = partial(self.step, self._decoded)
            self._decoding = decode(self._plane, request, self._holder, then)
            self.watch(self._plane.now())
        else:
            self._begin_read()

    def _decoded(self, found: bytes | Exception) -> None:
        job, self._decoding = self._decoding, None  # it has the body, and refers to this
        assert job is not None
        take_decoded(self._plane, self.request, self._asker, job, found)
        self._begin_read()

    def _begin_read(self) -> None:
        holder, scheduler, size_bytes = self._holder, self._plane.scheduler, len(self.request.body)
        told = None
        if size_bytes < SMALL_BYTES or (
            size_bytes <= LARGE_BYTES and scheduler.take(holder, size_bytes * JSON_BYTE_S)
        ):
            told = self._glance()
        if told is not None:
            self._read(told)
        else:  # in turns, so that a client delays itself only
            scheduler.add(holder, self._read_more)

    def _read_more(self) -> bool:
        """Take a step of reading if the client still waits. True while more is left."""
        over = self.request.patience.over(self._plane.now(), started=False)
        if over is not None:
            self._end(over)
        if not self._ended:
            self.step(self._read_on)
        return self._reading is not None

    def _read_on(self) -> None:
        told = self._glance() if self._reading is None else None
        if self._reading is not None:
            told = next(self._reading)
        if told is not None:
            self._reading = None
            self._read(told)

    def _glance(self) -> Wanted | None:
        """What the request wants. None: reading it takes steps."""
        plane, request, party = self._plane, self.request, self._asker.party
        head, endpoint, body = request.head, request.endpoint, request.body
        told = wanted(plane, head, endpoint, body, party)
        if told is None:
            self._reading = reading_wanted(plane, head, endpoint, body, party)
        return told

    def _read(self, told: Wanted) -> None:
        plane, request = self._plane, self.request
        request.ask, request.endpoint, request.hides_usage, request.edits = told
        ask, body = request.ask, request.body
        poison, now_s = plane.poison, request.record.received_s
        if poison.may_hold(len(body), now_s) and poison.holds(ask.tenant, request.mark, now_s):
            plane.metrics.attempts.add("poison")
            raise PoisonRequest
        if plane.counting is None and not plane.labelling.on:
            self._next()
            return
        inquiry = self._inquiry = Inquiry(plane, request, self.step, self._next)
        inquiry.begin()
        if inquiry.waits:
            self.watch(plane.now())

    def _next(self) -> None:
        """Choose a backend, reserve on it and begin an attempt there. Or wait for room."""
        if self._ended:
            return
        self._phase = "queued"
        record, now_s = self.request.record, self._plane.now()
        record.read_s = record.read_s or now_s
        lease = self._entry.enter(self._asker.party, now_s)
        if lease is not None:
            self._try(lease)
        else:
            self.watch(now_s)

    def _admitted(self, outcome: Lease | PenstockError | None) -> None:
        if outcome is None:  # at once: whoever comes next must see who is there already
            self.step(self._next)
        else:
            self.step(self._try if isinstance(outcome, Lease) else self._end, outcome)

    def _try(self, lease: Lease) -> None:
        self._phase, self._lease = "connect", lease
        self._failover.begun(lease)
        plane, request, backend = self._plane, self.request, lease.backend
        way = request.way
        if way is not None and way.draw is not None and not way.step:
            way.draw.sent(lease, on_canary=way.canary)
        request.record.begin_try(backend.name, backend.pool, lease.reason, lease.began_s)
        request.answer.about = origin(plane, lease, request)
        times = request.times = plane.metrics.times(backend, request.ask.model)
        self._attempt = Attempt(self, plane, request, lease, times.itl_s)
        self._attempt.begin()
        if self._phase == "connect" and not self._ended:
            self.watch(plane.now())

    def _attempted(self, error: BackendError | None) -> None:
        lease, attempt = self._lease, self._attempt
        assert lease is not None
        assert attempt is not None
        now_s = self._plane.now()
        if error is None:
            self._answered(lease, now_s)
            return
        if attempt.relay is not None and attempt.relay.committed:
            learn(self._plane, self.request, lease, attempt.relay, now_s)
        self._failover.failed(lease, error, attempt.relay, now_s, resent=attempt.resent)
        lease.end(now_s)
        self._next()

    def _answered(self, lease: Lease, now_s: float) -> None:
        """End: the answer was passed on. Its status still counts for or against the backend."""
        plane, relay = self._plane, self._relay
        assert relay is not None
        self.request.record.tries[-1].status = relay.meant_status
        learn(plane, self.request, lease, relay, now_s)
        self._mirror()
        if relay.status == 500:
            self._failover.complain(lease, InternalFault(), now_s)
        else:
            plane.metrics.attempted(self.request.times, "ok")
            if relay.refused_midway:
                plane.metrics.stream_failures.add("refused")
            if relay.served and plane.poison.by_tenant:
                plane.poison.served(self.request.mark)
            conclude(plane.gate, lease, relay, now_s, plane.failed, bare=self.request.kept)
        self._end(None)

    def _mirror(self) -> None:
        way = self.request.way
        if way is not None and way.decision.mirrored:
            mirror(self._plane, self.request, self._relay)

    # Time ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.step(self._look)

    def _look(self) -> None:
        """See what is due: the end of the request's time, of its attempt's, or a ping."""
        request, attempt, now_s = self.request, self._attempt, self._plane.now()
        answer = request.answer
        over = request.patience.over(now_s, started=answer.started, committed=self._committed)
        if over is not None and attempt is not None and not self._entry.waits:
            attempt.give_up(over)
        elif over is not None:
            self._end(over)
        elif attempt is not None:
            attempt.look(now_s, self._failover.leaves)
        if self._ended or attempt is not self._attempt:
            return
        if request.ask.stream and now_s >= request.hold_s and not self._committed:
            answer.hold()
            self._entry.promised()
            request.hold_s = now_s + PING_S
        self.watch(now_s)

    # The end ----------------------------------------------------------------------------------

    def _end(self, error: PenstockError | None) -> None:
        """End in every case: stop the bytes, free the engine and the lease, account once."""
        if self._ended:
            return
        self._ended = True
        self._clock.clear()
        self._clock.expired = nothing
        self._reading = None
        if self._decoding is not None:
            self._decoding.end()
            self._decoding = None
        if self._inquiry is not None:
            self._inquiry.end()
            self._inquiry = None  # a reference cycle
        if self._attempt is not None:
            self._attempt.abort()
        self._failover.spared()
        self._entry.end(self._plane.now())
        request, lease, told = self.request, self._lease, None
        try:
            if lease is not None:
                self._let_go(lease)
            if error is not None and not request.answer.finished:
                told = _tell(request, error, self._relay, committed=self._committed)
            ended(self._plane, request, lease, self._relay, told)
        finally:
            if error is not None:  # its frames hold the body and this exchange: a cycle, too
                error.__traceback__ = error.__context__ = error.__cause__ = None
            if request.charge is not None:
                settle(self._plane, request, request.charge, lease)
            self._plane.running.end(self._holder)
            self._attempt = None  # a reference cycle: only the collector would free it
            self._plane.scheduler.free(self._holder, request.body)
            request.body = b""  # the scheduler may still hold this exchange
            self._asker.answered(request.answer)

    def _let_go(self, lease: Lease) -> None:
        """End the last lease: the client has left, or its time is over. Idempotent."""
        relay, now_s = self._relay, self._plane.now()
        ask = lease.ask
        if (ask.background or not ask.engine) and self._plane.background.keeps(
            self.request, lease, relay
        ):
            return
        if not lease.ended and relay is not None and relay.committed:
            learn(self._plane, self.request, lease, relay, now_s)
        elif not lease.ended:
            self._plane.gate.left(lease, now_s)
        lease.end(now_s)

    @property
    def _relay(self) -> Relay | None:
        return self._attempt.relay if self._attempt is not None else None

    @property
    def _committed(self) -> bool:
        relay = self._relay
        return relay is not None and relay.committed


def _tell(
    request: Request, error: PenstockError, relay: Relay | None, *, committed: bool
) -> PenstockError | None:
    """End its answer with an error, in the way that is still possible.

    `relay`: of its last attempt; `committed`: the client has some of it.

    Returns what it was told. None: an answer that was kept, in place of an error.
    """
    answer, dialect = request.answer, request.endpoint.dialect
    kept = request.kept if isinstance(error, BackendError) else None
    if kept is not None and not committed:
        kept.pass_on()  # no backend gave a better answer
        return None
    if isinstance(error, ResponseNotFound):
        answer.about = []  # do not show how far it was searched: it may be another tenant's
    if not answer.started:
        answer.fail(error, dialect.error_body(error))
        return error
    if isinstance(error, StreamBroken) and error.told:
        answer.write(error.told)
        answer.finish()
        return error
    streamed = request.ask.stream or isinstance(relay, EventRelay)
    answer.break_off(dialect.error_event(error) if streamed else b"")
    return error
