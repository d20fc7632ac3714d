"""Decodes the coded body of one request off the loop (`decoders.py`).

Each piece is counted as if it had just arrived: against the limit of a body, and against the room
of all bodies.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.proxy.data.acceptance import release_coded, take
from penstock.proxy.data.client import Client
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.errors.client import BadRequest, DecodedTooLarge
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.wire.content_coding import BOM, Decoder, RatioExceeded, Undecodable

logger = logging.getLogger(__name__)


class Asker(Protocol):
    """The exchange, as the decoding of its body sees it."""

    def step(self, step: Callable[..., None], *arguments: object) -> None:
        """Run one step. Whatever it raises is told to the client."""


class Decoding:
    """The body of one request while it is decoded. `decoded` is called once it is whole."""

    __slots__ = ("_asker", "_client", "_coded_bytes", "_decoded", "_plane", "_request", "decoder")

    def __init__(
        self,
        plane: DataPlane,
        request: Request,
        client: Client,
        asker: Asker,
        decoded: Callable[[], None],
    ) -> None:
        self._plane = plane
        self._request = request
        self._client = client
        self._asker: Asker | None = asker
        self._decoded = decoded
        self._coded_bytes = len(request.body)
        self.decoder = Decoder(request.head.coding, request.head.path, request.body)

    waits = True

    @property
    def holder(self) -> str:
        return self._client.holder

    def begin(self) -> None:
        self._plane.decoders.add(self)

    def end(self) -> None:
        """Nobody wants the body any more."""
        self._asker = None

    def told(self, found: int | Exception) -> None:
        """A piece of so many bytes was decoded, or could not be. Runs on the loop."""
        if self._asker is not None:
            self._asker.step(self._take, found)

    def _take(self, found: int | Exception) -> None:
        plane, request, client = self._plane, self._request, self._client
        if isinstance(found, Exception):
            raise _error_of(found)
        limit_bytes = plane.body_bytes_max
        size_bytes = self.decoder.size_bytes
        if size_bytes > limit_bytes:
            raise DecodedTooLarge(f"over the limit of {limit_bytes} bytes")
        refusal = take(plane, found, client.body_bytes + found, client)
        if refusal is not None:
            raise refusal
        if not self.decoder.complete:
            self.begin()
            return
        plane.freeing.add(request.body)
        request.decoded(*self.decoder.whole())
        release_coded(plane, client, self._coded_bytes)
        self._decoded()


def is_coded(request: Request) -> bool:
    """Whether its body must be decoded before it is read."""
    return bool(request.body) and (request.head.coding != b"" or request.body.startswith(BOM))


def _error_of(found: Exception) -> PenstockError:
    if isinstance(found, Undecodable):
        return BadRequest(f"The request body is no single, whole piece of {found} data.")
    if isinstance(found, RatioExceeded):
        return DecodedTooLarge("far more than it takes coded: send it without Content-Encoding")
    logger.error("decoding failed", exc_info=found)
    return PenstockError()
