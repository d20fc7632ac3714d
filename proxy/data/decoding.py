"""Has the coded body of one request decoded, and counts it as if it had just arrived."""

from collections.abc import Callable

from penstock.proxy.data.acceptance import exchange_room
from penstock.proxy.data.client import Client
from penstock.proxy.data.decoders import Job
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.errors.client import BadRequest, DecodedTooLarge
from penstock.proxy.wire.content_coding import RATIO_MAX, SMALL_BYTES, Undecodable


def decode(
    plane: DataPlane, request: Request, holder: str, then: Callable[[bytes | Exception], None]
) -> Job:
    body = request.body
    most_bytes = min(plane.body_bytes_max, max(SMALL_BYTES, RATIO_MAX * len(body)))
    job = Job(request.head.coding, body, most_bytes, then)
    plane.decoders.add(holder, job)
    return job


def take_decoded(
    plane: DataPlane, request: Request, client: Client, job: Job, found: bytes | Exception
) -> None:
    """Go on with the decoded body. Raises what its client is told."""
    if isinstance(found, Undecodable):
        coding = request.head.coding.decode()
        raise BadRequest(f"The request body is not one whole piece of {coding} data.")
    if isinstance(found, Exception):
        raise found
    if len(found) > job.most_bytes:
        raise DecodedTooLarge(job.most_bytes)
    refusal = exchange_room(plane, len(request.body), len(found), client)
    if refusal is not None:
        raise refusal
    plane.freeing.add(request.body)
    request.decoded(found)
