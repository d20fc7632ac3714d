"""The PROXY header at the beginning of a connection, and what is not one."""

import asyncio
from ipaddress import ip_address

import pytest

from penstock.proxy.wire.client_address import V2_BYTES_MAX, ProxyHeader, read_header
from tests.unit.proxy.wire.transport import Notes, Transport

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(family: int, body: bytes, *, command: int = 0x21) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(body).to_bytes(2, "big") + body


def addresses(*texts: str) -> bytes:
    return b"".join(ip_address(each).packed for each in texts) + b"\x10\x00\x00\x50"


V4 = v2(0x11, addresses("192.0.2.7", "10.0.0.1"))
V6 = v2(0x21, addresses("2001:db8::1", "fd00::1"))


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 4096 80\r\n", "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::1 fd00::1 4096 80\r\n", "2001:db8::1"),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 4096 80\r\n", "192.0.2.7"),
        (b"PROXY UNKNOWN\r\n", ""),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", ""),
        (V4, "192.0.2.7"),
        (V6, "2001:db8::1"),
        (v2(0x21, addresses("::ffff:192.0.2.7", "::1")), "192.0.2.7"),
        (v2(0x12, addresses("192.0.2.7", "10.0.0.1")), "192.0.2.7"),
        (v2(0x11, addresses("192.0.2.7", "10.0.0.1") + b"\x04\x00\x02ab"), "192.0.2.7"),
        (v2(0x00, b""), ""),
        (v2(0x31, bytes(216)), ""),
        (v2(0x11, addresses("192.0.2.7", "10.0.0.1"), command=0x20), ""),
    ],
)
def test_headers_cut_anywhere(header: bytes, address: str) -> None:
    for end in range(len(header)):
        assert read_header(header[:end]) is None
    assert read_header(header) == (address, len(header))
    assert read_header(header + b"GET / HTTP/1.1\r\n") == (address, len(header))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00",
        b"PROXY\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 4096\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 4096 80 1\r\n",
        b"PROXY TCP4 192.0.2.777 10.0.0.1 4096 80\r\n",
        b"PROXY TCP4 2001:db8::1 fd00::1 4096 80\r\n",
        b"PROXY TCP6 192.0.2.7 10.0.0.1 4096 80\r\n",
        b"PROXY TCP4 192.0.2.7 x 4096 80\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 4096 655360\r\n",
        b"PROXY UNKNOWN\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 -1 80\r\n",
        b"PROXY TCP4  192.0.2.7 10.0.0.1 4096 80\r\n",
        b"PROXY UDP4 192.0.2.7 10.0.0.1 4096 80\r\n",
        b"proxy UNKNOWN\r\n",
        b"PROXY UNKNOWN" + b" " * 100,
        b"\r\n\r\n\x00\r\nQUIT\x00",
        v2(0x11, addresses("192.0.2.7", "10.0.0.1"), command=0x11),
        v2(0x11, addresses("192.0.2.7", "10.0.0.1"), command=0x22),
        v2(0x11, b"\xc0\x00\x02\x07"),
        v2(0x21, addresses("192.0.2.7", "10.0.0.1")),
        v2(0x41, bytes(36)),
        v2(0x00, bytes(V2_BYTES_MAX + 1))[:16],
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"PROXY|address"):
        read_header(data)


class Replaced(Transport):
    protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


def connected() -> tuple[ProxyHeader, Notes, Replaced]:
    behind, transport = Notes(), Replaced()
    header = ProxyHeader(behind, behind.seen.append)
    header.connection_made(transport)
    return header, behind, transport


def test_the_connection_goes_on_behind_the_header() -> None:
    header, behind, transport = connected()
    header.data_received(V4[:20])
    assert (behind.seen, transport.protocol) == (["made"], None)
    header.data_received(V4[20:] + b"GET /")
    assert behind.seen == ["made", "192.0.2.7", b"GET /"]
    assert transport.protocol is behind


def test_a_load_balancers_own_connection_keeps_its_address() -> None:
    header, behind, transport = connected()
    header.data_received(v2(0x00, b"", command=0x20))
    assert (behind.seen, transport.protocol) == (["made"], behind)


def test_a_connection_without_a_header_is_closed() -> None:
    header, behind, transport = connected()
    header.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert transport.aborted
    header.data_received(V4)
    header.connection_lost(None)
    assert behind.seen == ["made", "lost"]
