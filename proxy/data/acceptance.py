"""Accepts or refuses a request by its head, then counts its body as it comes and is decoded.

Every refusal that needs only the head belongs here, and the limits of bodies.
"""

from collections.abc import Callable
from typing import Final

from penstock.proxy.data.client import Client
from penstock.proxy.data.decoders import CODINGS, RATIO_MAX, SMALL_BYTES, Decoding, Undecodable
from penstock.proxy.data.endpoints import (
    OPEN_PATHS,
    Endpoint,
    is_answered_here,
    opens_websocket,
)
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.data.tenants import Tenants
from penstock.proxy.errors.client import (
    BadRequest,
    BodyTooLarge,
    DecodedTooLarge,
    MethodNotAllowed,
    Unauthorized,
    UnknownPath,
    UnsupportedEncoding,
    UpgradeRequired,
)
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.wire.heads import RequestHead

# While memory is short, the bodies of one holder may still grow to this size together, so that
# whoever fills the memory does not cut off the others.
SHORT_BYTES_MAX: Final = 1_048_576
# The time to send a body grows with what has arrived: at this rate a client is always in time.
BODY_BYTES_PER_S_MIN: Final = 4_096


def accept(plane: DataPlane, head: RequestHead, client: Client) -> Endpoint | None:
    """The endpoint of the request. None: penstock answers it itself. Raises a PenstockError."""
    paths = plane.paths
    astray = bool(paths.prefix) and not paths.descend(head)
    path = head.path
    _identify(plane, head, client)
    if astray:
        raise UnknownPath(paths.hint(path))
    if opens_websocket(head):
        raise UpgradeRequired
    limit_bytes = plane.body_bytes_max
    if head.length is not None and head.length > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    if is_answered_here(head.method, path):
        return None
    endpoint = paths.find(head.method, path)
    if endpoint is None:
        if head.method == b"OPTIONS" and plane.listen.cors_origins:
            return None
        methods = paths.methods_of(path)
        raise MethodNotAllowed(methods) if methods else UnknownPath(paths.hint(path))
    if head.coding and head.coding not in CODINGS:
        raise UnsupportedEncoding(head.coding, CODINGS)
    _check_load(plane, head, client, endpoint)
    return endpoint


def _check_load(plane: DataPlane, head: RequestHead, client: Client, endpoint: Endpoint) -> None:
    if client.excess:
        raise plane.refusals.crowded()
    reason = plane.overload.reason
    if reason and not (reason == "lag" and plane.running.spares(client.holder)):
        raise plane.refusals.overloaded(reason)
    limited = endpoint.work.engine or endpoint.first_pool
    if limited and head.tenant in plane.budgets.tenants:
        plane.budgets.glance(head.tenant, plane.now())
    if head.length and not plane.bodies.fits(head.length, plane.bodies_bytes, client):
        raise plane.refusals.no_room()
    if plane.clients.crowds(client.holder):
        message = "You have too many requests under way; retry."
        raise plane.refusals.overloaded("connections", message)


def take(
    plane: DataPlane, size_bytes: int, limit_bytes: int, client: Client
) -> PenstockError | None:
    """Count a piece of a body. An error if the body is above its limit, or there is no room.

    `limit_bytes`: as configured when the request's head came.
    """
    body_bytes = client.body_bytes + size_bytes
    if body_bytes > limit_bytes:
        return BodyTooLarge(limit_bytes)
    if plane.overload.reason == "memory":
        own_bytes = plane.bodies.of(client.holder) + size_bytes
        if own_bytes > SHORT_BYTES_MAX:
            return plane.refusals.no_room()
    if not plane.bodies.take(size_bytes, plane.bodies_bytes, client):
        return plane.refusals.no_room()
    client.body_bytes = body_bytes
    return None


def take_head(plane: DataPlane, head: RequestHead, client: Client) -> PenstockError | None:
    """Count a long head, which is kept while its request runs. An error if there is no room."""
    if not plane.bodies.take(head.size_bytes, plane.bodies_bytes, client):
        return plane.refusals.no_room()
    client.body_bytes += head.size_bytes
    return None


def decode(
    plane: DataPlane, request: Request, holder: str, then: Callable[[bytes | Exception], None]
) -> Decoding:
    """Have a coded body decoded. `then` is called with what was found."""
    body = request.body
    most_bytes = min(plane.body_bytes_max, max(SMALL_BYTES, RATIO_MAX * len(body)))
    job = Decoding(request.head.coding, body, most_bytes, then)
    plane.decoders.add(holder, job)
    return job


def take_decoded(
    plane: DataPlane, request: Request, client: Client, job: Decoding, found: bytes | Exception
) -> None:
    """Go on with the decoded body. Raises what its client is told."""
    if isinstance(found, Undecodable):
        coding = request.head.coding.decode()
        raise BadRequest(f"The request body is not one whole piece of {coding} data.")
    if isinstance(found, Exception):
        raise found
    if len(found) > job.most_bytes:
        raise DecodedTooLarge(job.most_bytes)
    refusal = take(plane, len(found), client.body_bytes + len(found), client)
    if refusal is not None:
        raise refusal
    plane.bodies.release(len(request.body), client)  # in place of the coded one
    client.body_bytes -= len(request.body)
    plane.scheduler.free(client.holder, request.body)
    request.decoded(found)


def _identify(plane: DataPlane, head: RequestHead, client: Client) -> None:
    """Set the tenant, and the address if a proxy tells it. Also find a seat if the client has none.

    Raises Unauthorized.
    """
    if plane.proxies is not None:
        client.asks_from(plane.proxies.client_of(client.source, head.headers))
    if plane.tenants.asks and not _open_to_all(plane, head):
        if plane.tenants.authority:
            _identify_connection(plane.tenants, head, client)
        else:
            head.tenant = client.tenant = plane.tenants.of(head.headers)
        client.proven = True
    if client.excess:  # others may have left meanwhile, or must leave for a client with a key
        client.excess = not plane.clients.seat(client)
        if client.excess:
            head.keep_alive = False


def _identify_connection(tenants: Tenants, head: RequestHead, client: Client) -> None:
    """Set the tenant where connections tell it, too.

    After a refusal the connection ends: only a new one can show a certificate, or another one.
    """
    certificate = client.certificate
    try:
        head.tenant = client.tenant = tenants.on(certificate, head.headers)
    except Unauthorized:
        head.keep_alive = False
        raise
    if certificate is not None and certificate.tenant:
        # Backends' connections are not shared between tenants, whatever key their clients send.
        head.credentials = b"%b\n%b" % (head.tenant.encode(), head.credentials)


def _open_to_all(plane: DataPlane, head: RequestHead) -> bool:
    """Whether no key is needed: health checks, and what browsers ask before they send a key."""
    if head.method == b"OPTIONS":
        return bool(plane.listen.cors_origins)
    return head.path in OPEN_PATHS and head.method in (b"GET", b"HEAD")
