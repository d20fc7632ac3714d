"""Copies a request to the mirror of its route, after its own answer has begun.

That is never done in the turn of the answer, so the original does not wait for it. A copy is
nobody's request: it is not charged, logged, counted as usage or part of a service level, and no
estimator learns from it.
"""

import logging
from math import inf
from random import Random
from typing import Final

import msgspec

from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.fleet import UnknownModel
from penstock.balancing.gate import Look, NoBackend
from penstock.balancing.lease import Lease
from penstock.balancing.members import Places, span_of
from penstock.balancing.routes.split import place_of, seed_of
from penstock.proxy.data.mirrors import SENDER, Copy, Mirrored, Seat
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.relay import Relay
from penstock.proxy.data.request import Request
from penstock.proxy.data.route_changes import MODEL
from penstock.proxy.data.routing import aimed, nobody
from penstock.proxy.wire.edit import Edits, splices
from penstock.proxy.wire.header_fields import KEY_HEADERS
from penstock.proxy.wire.heads import RequestHead

logger = logging.getLogger(__name__)

# Marks a copy. What has it is not copied, so two proxies that mirror to each other make no loop.
# A client may send it, too: its requests are not copied then, and it is not passed on.
MARK: Final = b"x-penstock-mirror"
_ID_BYTES_MAX: Final = 64
# Of the client's headers only these are copied: a key may be in any other one.
_COPIED: Final = frozenset({b"content-type", b"accept", b"anthropic-version", b"anthropic-beta"})
# Copies hold at most this part of the room for bodies, and only while half of it is free.
_BODIES_SHARE: Final = 8
# How long a plain answer may take.
PLAIN_S: Final = 600.0


def mirror(plane: DataPlane, request: Request, relay: Relay | None) -> None:
    """Have a request copied, if its route says so and its answer is one. That has begun.

    Call it before the body is dropped. A second call, after that, does nothing.
    """
    way, ask, body = request.way, request.ask, request.body
    if way is None or not way.decision.mirrored or not body:
        return
    if relay is None or not relay.served:
        return
    # What goes on from a stored response needs the engine that has it.
    if request.is_form or not ask.engine or ask.response_id is not None:
        return
    if request.head.get(MARK) is not None:
        return
    mirrors, route = plane.mirrors, way.decision.rule.name
    seat = None
    if _has_room(plane, len(body)):
        seat = mirrors.seat(route, ask.client, len(body))
    if seat is None:
        mirrors.count(route, "no_room")
        return
    edits, places = request.edits, ask.places
    plane.loop.call_soon(_begin, plane, request, seat, body, edits, places)


def original_left(request: Request) -> None:
    """The client of the original has left: the mirror's engine sees that, too."""
    if request.copy is not None:
        request.copy.end("left")


def _has_room(plane: DataPlane, body_bytes: int) -> bool:
    """Whether nobody else needs the memory for a body of this size."""
    if plane.overload.reason or plane.draining:
        return False
    copies_bytes = plane.mirrors.bodies_bytes + body_bytes
    if copies_bytes > plane.bodies_bytes // _BODIES_SHARE:
        return False
    return plane.bodies.held_bytes + copies_bytes <= plane.bodies_bytes // 2


def _begin(
    plane: DataPlane, request: Request, seat: Seat, body: bytes, edits: Edits, places: Places
) -> None:
    """Choose the backend of a copy and send it. Whatever fails, the original goes on."""
    try:
        result = _send(plane, request, seat, body, edits, places)
    except Exception:  # no request waits for it
        request_id = request.answer.request_id.decode()
        logger.exception("copy for a mirror failed request_id=%s", request_id)
        result = "failed"
    if request.copy is None:
        plane.mirrors.leave(seat, result)
    elif result:
        request.copy.end(result)


def _send(
    plane: DataPlane, request: Request, seat: Seat, body: bytes, edits: Edits, places: Places
) -> str:
    way, record, now_s = request.way, request.record, plane.now()
    assert way is not None
    mirror = way.decision.rule.mirror
    assert mirror is not None
    target = mirror.target
    if record.ended_s and not record.whole:
        return "left"
    known = target.pool in [each.name for each in plane.fleet.pools]
    if plane.draining or not known:  # a reload has removed it
        return "no_backend"
    ask = aimed(plane, request.ask, target, way.asked)
    kept: Edits = tuple([edit for edit in edits if edit[0] != MODEL])
    if ask.model != way.asked:
        kept = (*kept, (MODEL, msgspec.json.encode(ask.model)))
    lease = _lease(plane, ask, now_s)
    if lease is None:
        return "no_backend"
    forwards_key, own_key = plane.credentials[lease.backend.name]
    forwards_key = forwards_key and mirror.forward_authorization
    timeouts, name = plane.timeouts, lease.backend.name
    first_s = timeouts.first_byte_s
    first_s += timeouts.first_byte_s_per_1k_tokens * ask.prompt_tokens / 1000
    plain = ask.generates and not ask.stream  # nothing comes before its last token
    added = [  # the mark, an id that shows whose copy it is, and the lowest priority
        (b"x-request-id", request.answer.request_id[:_ID_BYTES_MAX] + b"-mirror"),
        (MARK, b"1"),
        (b"x-vllm-priority", plane.classes.told[-1][1]),
    ]
    mirrored = Mirrored(
        seat,
        record,
        request.ask.max_tokens or 0,
        _head(request, forwards_key=forwards_key),
        body,
        splices(body, kept + _stores_nothing(ask, places), places),
        added,
        request.endpoint.dialect,
        request.peer,
        (forwards_key, own_key),
        PLAIN_S if plain else first_s,
        timeouts.idle_s,
        timeouts.total_s or inf,
    )
    mirrors = plane.mirrors
    copy = request.copy = Copy(mirrored, lease, plane.connections[name], plane.now, mirrors.ended)
    mirrors.run(copy)
    return ""


def _lease(plane: DataPlane, ask: Ask, now_s: float) -> Lease | None:
    """A place for a copy at a backend with room for it. None: there is none.

    The pool's policy is not told, and remembers no session and no prompt of it. Copies of one
    session go to one backend, so that its cache sees what the target's sees.
    """
    session = ask.session
    # Whoever sends the original, its copy counts as the mirror's own.
    ask = ask.changed(
        session=None, home=None, blocks=(), background=False, client=SENDER, tenant=""
    )
    try:
        look = plane.gate.look(ask, now_s, dry=True)
    except (NoBackend, UnknownModel, OverContext):
        return None
    fit = [each for each in look.fit if not each.is_closed(SENDER, now_s)]
    if look.pool.full or not fit:
        return None
    chosen = _chosen(fit, session, plane.rng)
    look = Look(look.pool, look.fit, look.ask, chosen)
    lowest = len(plane.classes.names) - 1
    copy = QueuedRequest(look.ask, now_s, nobody, SENDER, lowest, dry=True)
    if plane.admission.enabled and not plane.admission.takes_now(copy, look, now_s):
        return None
    return Lease(chosen, look.ask, now_s)


def _chosen(fit: list[Backend], session: str | None, rng: Random) -> Backend:
    """The backend of the session, by rendezvous hashing. Without one a backend with few requests:
    of two that are drawn."""
    if session is not None:
        return max(fit, key=lambda each: place_of(session, seed_of(each.name)))
    one, other = rng.choice(fit), rng.choice(fit)
    return one if one.requests_in_flight <= other.requests_in_flight else other


def _head(request: Request, *, forwards_key: bool) -> RequestHead:
    """The head of a copy, without what may be secret. A key may stand in a query, too."""
    head, way = request.head, request.way
    assert way is not None
    names = _COPIED | KEY_HEADERS if forwards_key else _COPIED
    changes = way.decision.rule.changes
    if changes is not None:
        names |= {name for name, _ in changes.headers}
    return RequestHead(
        head.method,
        head.path,
        head.path,
        head.http11,
        [field for field in head.headers if field[0] in names],
        head.nominated,
        None,
        True,
        False,
        head.credentials if forwards_key else b"",
    )


def _stores_nothing(ask: Ask, places: Places) -> Edits:
    """The edits by which an engine keeps nothing of a copy, and makes no answer in the
    background. Responses are stored unless they say otherwise."""
    edits: Edits = ()
    if ask.path == "/v1/responses" or span_of(places, b"store") is not None:
        edits += ((b"store", b"false"),)
    if span_of(places, b"background") is not None:
        edits += ((b"background", b"false"),)
    return edits
