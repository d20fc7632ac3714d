"""From which address a request comes: what trusted proxies say is read from the right."""

import time

import pytest

from penstock.proxy.wire.client_address import TrustedProxies

TRUSTED = TrustedProxies(["10.0.0.0/8", "fd00::/8"])
FOR, FORWARDED = b"x-forwarded-for", b"forwarded"
NEAR, CLIENT = "10.0.0.1", "192.0.2.7"


@pytest.mark.parametrize(
    ("value", "client"),
    [
        (b"192.0.2.7", CLIENT),
        (b"192.0.2.9, 192.0.2.7", CLIENT),
        (b"192.0.2.9,192.0.2.7,10.1.1.1", CLIENT),
        (b"10.1.1.2, 10.1.1.1", "10.1.1.2"),
        (b" 192.0.2.7 ", CLIENT),
        (b"192.0.2.7:4711", CLIENT),
        (b"::ffff:192.0.2.7", CLIENT),
        (b"2001:db8::1", "2001:db8::1"),
        (b"[2001:db8::1]", "2001:db8::1"),
        (b"[2001:DB8:0::1]:4711, fd00::2", "2001:db8::1"),
        (b'"192.0.2.7"', CLIENT),
        (b"", NEAR),
        (b"unknown", NEAR),
        (b"192.0.2.7, unknown", NEAR),
        (b"192.0.2.7, unknown, 10.1.1.1", "10.1.1.1"),
        (b"192.0.2.7,", NEAR),
        (b"192.0.2.7:x", NEAR),
        (b"192.0.2.7:655360", NEAR),
        (b"192.0.2.777", NEAR),
        (b"[2001:db8::1", NEAR),
        (b"fe80::1%eth0", NEAR),
        (b"192.0.2.7\xff", NEAR),
    ],
)
def test_the_last_address_that_is_no_proxy_is_the_client(value: bytes, client: str) -> None:
    assert TRUSTED.client_of(NEAR, [(b"host", b"x"), (FOR, value)]) == client


def test_only_a_trusted_peer_is_believed() -> None:
    for peer, trusted in ((NEAR, True), ("::ffff:10.0.0.1", True), ("fd00::1", True), ("", False)):
        told = TRUSTED.client_of(peer, [(FOR, b"192.0.2.7")])
        assert told == (CLIENT if trusted else peer)
    assert TRUSTED.client_of("192.0.2.1", [(FOR, b"192.0.2.7")]) == "192.0.2.1"
    assert TRUSTED.client_of(NEAR, []) == NEAR


def test_several_lines_are_one_list() -> None:
    headers = [(FOR, b"192.0.2.9"), (FOR, b"192.0.2.7"), (FOR, b"10.0.0.2")]
    assert TRUSTED.client_of(NEAR, headers) == CLIENT


@pytest.mark.parametrize(
    ("value", "client"),
    [
        (b"for=192.0.2.7", CLIENT),
        (b"for=192.0.2.9;proto=http, proto=https; For=192.0.2.7 ;by=10.0.0.1", CLIENT),
        (b'for="[2001:db8::1]:4711"', "2001:db8::1"),
        (b'for=192.0.2.9, for="192.0.2.7:80", for=10.2.2.2', CLIENT),
        (b'for="192.0.2.9, for=192.0.2.7', CLIENT),
        (b"for=_hidden", NEAR),
        (b"for=unknown, for=10.1.1.1", "10.1.1.1"),
        (b"proto=https", NEAR),
        (b"for=192.0.2.7, by=10.0.0.1", NEAR),
    ],
)
def test_the_standard_header_is_read_alike(value: bytes, client: str) -> None:
    assert TRUSTED.client_of(NEAR, [(FORWARDED, value)]) == client


def test_where_two_headers_disagree_neither_is_believed() -> None:
    """The proxy has written one of them, and the client maybe the other."""
    same = [(FOR, b"192.0.2.7"), (FORWARDED, b"for=192.0.2.7")]
    assert TRUSTED.client_of(NEAR, same) == CLIENT
    assert TRUSTED.client_of(NEAR, [(FOR, b"192.0.2.7"), (FORWARDED, b"for=192.0.2.8")]) == NEAR


def test_a_long_list_costs_little() -> None:
    values = [(FOR, b"10.0.0.1," * 7_000 + b"10.0.0.1"), (FOR, b"," * 60_000)]
    began_s = time.process_time()
    for value in values:
        assert TRUSTED.client_of(NEAR, [value]) == NEAR
    assert time.process_time() - began_s < 0.1
