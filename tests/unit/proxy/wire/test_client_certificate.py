"""What is read of a client's certificate, and which sessions are not begun or resumed."""

import ssl
from typing import Any, cast

import pytest

from penstock.proxy.wire.certificates import (
    CERTIFICATE_BYTES_MAX,
    NAMES_MAX,
    names_of,
    names_shown,
)

EXPIRES = "Nov 26 00:00:00 2026 GMT"
EXPIRES_S = ssl.cert_time_to_seconds(EXPIRES)


class Connection:
    """A connection after its handshake."""

    def __init__(self, *names: tuple[str, str], **state: Any) -> None:
        self.fields: Any = {"subjectAltName": names, "notAfter": EXPIRES}
        self.session_reused = False
        self.session = self
        self.id = b""
        self.tls = "TLSv1.3"
        self.size_bytes = 600
        self.faulty = False
        for name, value in state.items():
            setattr(self, name, value)

    def version(self) -> str:
        return self.tls

    def getpeercert(self, binary_form: bool = False) -> Any:
        if binary_form:
            return b"x" * self.size_bytes if self.size_bytes else None
        if self.faulty:
            raise ValueError
        return self.fields


def shown(*names: tuple[str, str], now_s: float = EXPIRES_S - 1, **state: Any) -> Any:
    return names_shown(cast(ssl.SSLObject, Connection(*names, **state)), lambda: now_s)


DNS, URI = ("DNS", "one.example"), ("URI", "spiffe://acme/one")


@pytest.mark.parametrize(
    ("names", "state", "expected"),
    [
        ((DNS, URI), {}, ("one.example", "spiffe://acme/one")),
        ((), {}, ()),
        ((DNS,), {"size_bytes": 0}, None),
        ((DNS,), {"size_bytes": CERTIFICATE_BYTES_MAX + 1}, ()),
        ((DNS,), {"faulty": True}, ()),
        ((DNS,), {"id": b"x"}, ("one.example",)),
        ((DNS,), {"id": b"x", "tls": "TLSv1.2", "session_reused": True}, ("one.example",)),
        ((DNS,), {"now_s": EXPIRES_S + 1}, ("one.example",)),  # OpenSSL has verified it just now
    ],
)
def test_names(names: Any, state: dict[str, Any], expected: Any) -> None:
    assert shown(*names, **state) == expected


@pytest.mark.parametrize(
    "state",
    [
        {"session_reused": True, "now_s": EXPIRES_S + 1},
        {"id": b"x", "tls": "TLSv1.2"},
    ],
)
def test_who_is_not_let_in(state: dict[str, Any]) -> None:
    with pytest.raises(ConnectionAbortedError):
        shown(DNS, **state)


def test_a_name_in_a_field_of_another_kind_is_none() -> None:
    """The authority has checked it as something else."""
    odd = [("DNS", "spiffe://acme/one"), ("URI", "one.example"), ("email", "a@one.example")]
    odd += [("IP Address", "10.0.0.1"), ("DirName", "one.example"), ("Registered ID", "1.2")]
    assert names_of({"subjectAltName": odd}) == ()


def test_of_very_many_names_none_counts() -> None:
    names = [("DNS", f"n{number}.example") for number in range(NAMES_MAX + 1)]
    assert names_of({"subjectAltName": names}) == ()
    assert len(names_of({"subjectAltName": names[1:]})) == NAMES_MAX
