"""What the limits and the drain ask of a client's connection."""

from typing import Protocol

from penstock.proxy.data.answer import Answer
from penstock.proxy.wire.certificates import ClientCertificate


class Client(Protocol):
    """One connection to the data port."""

    made_s: float  # when it connected
    began_s: float  # when its request began, or its wait for one
    peer: bytes  # the address that its requests are of
    body_bytes: int  # counted for its body and a long head
    proven: bool  # a request of it that is not open to all was accepted
    excess: bool  # it has no seat
    source: str  # the address of its connection, or of whom the PROXY protocol tells
    tenant: str  # whose key or certificate it has shown last
    certificate: ClientCertificate | None  # None: it was not asked for one

    @property
    def holder(self) -> str: ...
    @property
    def waits(self) -> bool:
        """Whether it has no request under way."""

    @property
    def pool(self) -> str:
        """Whose backend answers it, or answered its last request."""

    @property
    def untaken_bytes(self) -> int:
        """What was sent to it and what it has not taken."""

    def kept_bytes(self, *, refusing: bool) -> int:
        """What it keeps that no running request needs. `refusing`: work under way counts too."""

    def asks_from(self, address: str) -> None:
        """Its requests are of this address from now on."""

    def give_way(self) -> None: ...
    def slept(self) -> None: ...
    def announce_close(self) -> None: ...
    def outdate(self) -> None: ...
    def close_if_idle(self) -> None: ...
    def break_off(self) -> None: ...


class Asker(Client, Protocol):
    """The client's connection, as an exchange sees it."""

    party: str

    def release_body(self, kept_bytes: int) -> None:
        """The request's body is not needed any more. It still holds so many bytes."""

    def answered(self, answer: Answer) -> None:
        """The exchange is over. Nothing more will be added to the answer."""
