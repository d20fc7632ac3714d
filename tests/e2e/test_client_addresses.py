"""Who the client is behind proxies that say so, in headers or before the first byte."""

import asyncio
import socket
from pathlib import Path

import pytest

from tests.certificates import client_certificate, client_context, issue
from tests.e2e.process import Fleet, Penstock
from tests.e2e.request import BODIES, ask
from tests.e2e.wire import Client, request
from tests.unit.proxy.wire.test_proxy_protocol import V4, V6

LISTEN = {"host": "127.0.0.1", "port": 0}
COMPLETIONS = "/v1/completions"
HEALTH = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def clients(penstock: Penstock, count: int) -> list[str]:
    await penstock.lines(count)
    return [line["client"] for line in penstock.access_lines]


@pytest.mark.parametrize("trusted", [["127.0.0.0/8"], ["10.0.0.0/8"], []])
async def test_forwarded_headers_of_trusted_proxies_count(fleet: Fleet, trusted: list[str]) -> None:
    (server,), penstock = await fleet(listen=LISTEN | {"trusted_proxies": trusted})
    body = BODIES[COMPLETIONS]
    await ask(penstock, COMPLETIONS, body, x_forwarded_for="203.0.113.9, 192.0.2.7:80")
    upstream = [value for name, value in server.seen[-1].headers if name == b"x-forwarded-for"]
    await ask(penstock, COMPLETIONS, body, forwarded='for="[2001:db8::1]"')
    await ask(penstock, COMPLETIONS, body)
    believed = trusted == ["127.0.0.0/8"]
    told = ["192.0.2.7", "2001:db8::1", "127.0.0.1"] if believed else ["127.0.0.1"] * 3
    assert await clients(penstock, 3) == told
    assert upstream == [told[0].encode()]


@pytest.mark.parametrize("secure", ["", "tls", "certificates of clients"])
async def test_the_proxy_protocol(fleet: Fleet, tmp_path: Path, secure: str) -> None:
    listen = LISTEN | {"proxy_protocol": True}
    shown = None
    if secure:
        files = issue(tmp_path)
        listen |= {"tls": files.settings}
        if secure != "tls":
            listen |= {"tls": files.settings | {"client_ca_file": str(files.ca)}}
            shown = client_certificate(tmp_path, "one.example")
    _, penstock = await fleet(listen=listen)

    def asked(header: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", penstock.port), 5) as sock:
            sock.sendall(header if secure else header + HEALTH)
            if secure:
                with client_context(shown).wrap_socket(sock, server_hostname="localhost") as tls:
                    tls.sendall(HEALTH)
                    return tls.recv(65_536)
            return sock.recv(65_536)

    v1 = b"PROXY TCP4 192.0.2.8 10.0.0.1 4096 80\r\n"
    for header in (V4, V6, v1, b"PROXY UNKNOWN\r\n"):
        assert (await asyncio.to_thread(asked, header)).startswith(b"HTTP/1.1 200 ")
    for wrong in (b"", b"PROXY TCP4 192.0.2.8\r\n"):
        try:
            got = await asyncio.to_thread(asked, wrong)
        except OSError:  # a reset, or the handshake of TLS cut
            got = b""
        assert not got


@pytest.mark.parametrize("trusted", [[], ["192.0.2.0/24"]])
async def test_addresses_of_the_proxy_protocol_are_logged(fleet: Fleet, trusted: list[str]) -> None:
    """And those that a trusted proxy behind the load balancer gives."""
    listen = LISTEN | {"proxy_protocol": True, "trusted_proxies": trusted}
    _, penstock = await fleet(listen=listen)
    large = b'{"prompt":"x","max_tokens":1,"pad":"' + b"x" * 300_000 + b'"}'
    given = b"X-Forwarded-For: 203.0.113.9"
    for header in (V4, V6):
        client = await Client.open(penstock, header + request(given, body=large) + request(given))
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
        client.close()
    told = ["203.0.113.9" if trusted else "192.0.2.7"] * 2 + ["2001:db8::1"] * 2
    assert await clients(penstock, 4) == told


async def test_a_reload_changes_who_is_trusted(fleet: Fleet) -> None:
    _, penstock = await fleet(listen=LISTEN)
    wire = await Client.open(penstock)
    told = request(b"X-Forwarded-For: 203.0.113.9")
    wire.send(told)
    assert (await wire.answer()).status == 200
    changed = LISTEN | {"trusted_proxies": ["127.0.0.1"], "proxy_protocol": True, "prefix": "/llm"}
    status, change = await penstock.reload(listen=changed)
    assert (status, change["needs_restart"]) == (200, [])
    below = told.replace(b"/v1/", b"/llm/v1/")
    wire.send(below + told)
    assert [(await wire.answer()).status for _ in range(2)] == [200, 404]
    another = await Client.open(penstock, V4 + below)
    assert (await another.answer()).status == 200
    assert await clients(penstock, 4) == ["127.0.0.1", *["203.0.113.9"] * 2, "192.0.2.7"]
    wire.close()
