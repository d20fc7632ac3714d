"""What takes a backend's answer from its connection: an attempt first, then a relay."""

from typing import Protocol

from penstock.proxy.errors.backend import BackendError
from penstock.proxy.wire.heads import ResponseHead


class Sink(Protocol):
    """Receives an answer, in this order: head, body…, then end or lost."""

    def head(self, head: ResponseHead) -> None: ...
    def body(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def lost(self, error: BackendError) -> None: ...
