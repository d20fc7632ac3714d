"""TLS to backends: whom the proxy trusts, what it shows them, and what it sends them when."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import random
from typing import Any

import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.certificates import Files, authority, client_certificate, issue
from tests.e2e.process import Penstock, Serve, Simulate, pool_of, until
from tests.e2e.raw_backend import stop_listening
from tests.e2e.request import BODIES, ask
from tests.e2e.tls import TlsFront, post, pump

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
PROMPT: dict[str, Any] = BODIES[COMPLETIONS]
QUIET = {"interval_s": 60, "timeout_s": 5}
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
Front = Callable[..., Awaitable[TlsFront]]


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    """A TLS server before a plain one: `await front(server.port, "name", port=…, asks=version)`."""
    started: list[TlsFront] = []

    async def start(
        to: int, *args: Any, asks: ssl.TLSVersion | None = None, **fields: Any
    ) -> TlsFront:
        kind = TlsFront(to, *args, **fields) if asks is None else AskingFront(to, asks)
        started.append(await kind.start())
        return started[-1]

    yield start
    for each in started:
        await each.stop()


async def until_untrusted(penstock: Penstock) -> None:
    def untrusted(listing: list[dict[str, Any]]) -> bool:
        return bool(listing[0]["last_probe"].get("live", {}).get("reason") == "untrusted")

    await penstock.until(untrusted, 20)
    assert (await penstock.backends())[0]["state"] == "starting"


class AskingFront(TlsFront):
    """Asks for a certificate, and notes the serial number of each that it is shown."""

    def __init__(self, to: int, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        super().__init__(to, context=asking(version))
        self.serials: list[str] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serials.append(writer.get_extra_info("peercert")["serialNumber"])
        await super()._serve(reader, writer)


def asking(version: ssl.TLSVersion) -> ssl.SSLContext:
    """A backend's context that asks for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("localhost").configure_cert(context)
    authority().configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    return context


@contextlib.contextmanager
def refusing(context: ssl.SSLContext) -> Iterator[str]:
    """The URL of a backend that tells why it refuses. asyncio's and uvloop's servers only close."""

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listening.accept()
                with contextlib.suppress(OSError), sock:
                    context.wrap_socket(sock, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield f"https://localhost:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("wrong", ["name", "authority", "no TLS"])
async def test_an_untrusted_backend_is_never_ready(
    simulate: Simulate, serve: Serve, front: Front, tmp_path: Path, files: Files, wrong: str
) -> None:
    (server,) = await simulate()
    there = await front(server.port, *(["elsewhere"] if wrong == "name" else []))
    ca = issue(tmp_path, by=trustme.CA(), name="other").ca if wrong == "authority" else files.ca
    port = server.port if wrong == "no TLS" else there.port
    pool = {"tls": {"ca_file": str(ca)}}
    penstock = await serve([f"https://localhost:{port}"], ready=0, pool=pool)
    await until_untrusted(penstock)
    if wrong == "authority":
        ca.write_bytes(files.ca.read_bytes())
        assert (await penstock.reload())[0] == 200
        await penstock.until_ready(1, 15)
        assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200


async def test_an_impostor_gets_no_request(
    simulate: Simulate, serve: Serve, front: Front, files: Files
) -> None:
    """It has the address, but not the name."""
    (server,) = await simulate()
    true = await front(server.port)
    penstock = await serve([true.url], pool={"tls": {"ca_file": str(files.ca)}}, health=QUIET)
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200
    await true.stop()
    await front(server.port, "elsewhere", port=true.port)
    seen = len(server.seen)
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 502
    assert len(server.seen) == seen


async def test_leaving_during_a_tls_dial_leaves_no_error(
    simulate: Simulate, serve: Serve, front: Front, files: Files
) -> None:
    """uvloop's transport does not tell that it is closed after the call that made it was cancelled.

    The fixture finds the tracebacks. Meanwhile another client is served.
    """
    (server,) = await simulate()
    penstock = await serve(
        [(await front(server.port)).url], pool={"tls": {"ca_file": str(files.ca)}}
    )
    left = 0

    async def leave() -> None:
        nonlocal left
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
            writer.write(post(COMPLETIONS, PROMPT))
            await asyncio.sleep(0.02 * random())
            writer.transport.abort()
            left += 1

    leaving = asyncio.gather(*(leave() for _ in range(4)))
    statuses = []
    while not leaving.done():
        statuses.append((await ask(penstock, COMPLETIONS, PROMPT)).status)
        await asyncio.sleep(0.05)
    await leaving
    print(f"{left} left, {len(statuses)} served")
    assert set(statuses) == {200}
    assert not any(b" ERROR " in line for line in penstock.log)


async def test_a_key_goes_where_it_was_chosen_for(
    simulate: Simulate, serve: Serve, front: Front, files: Files
) -> None:
    """A request that is being dialled while a reload changes its pool's key takes the old one."""
    (server,) = await simulate()
    behind = await front(server.port)
    passes, held = asyncio.Event(), asyncio.Event()
    passes.set()

    async def gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.set()
        await passes.wait()
        inner, to = await asyncio.open_connection("127.0.0.1", behind.port)
        await asyncio.gather(pump(reader, to, to.close), pump(inner, writer, writer.close))

    way = await asyncio.start_server(gate, "127.0.0.1", 0)
    url = f"https://localhost:{way.sockets[0].getsockname()[1]}"

    def pools(key: str) -> list[dict[str, Any]]:
        return [pool_of("default", {"b0": url}, tls={"ca_file": str(files.ca)}, api_key=key)]

    penstock = await serve([], ready=1, pools=pools("sk-old"), health=QUIET)
    passes.clear()
    held.clear()
    request = asyncio.create_task(ask(penstock, COMPLETIONS, PROMPT))
    await held.wait()
    assert (await penstock.reload(pools=pools("sk-new")))[0] == 200
    passes.set()
    assert (await request).status == 200
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200
    headers = [dict(seen.headers) for seen in server.seen if seen.path == COMPLETIONS]
    keys = [each[b"authorization"] for each in headers if b"x-request-id" in each]
    assert keys == [b"Bearer sk-old", b"Bearer sk-new"]
    await stop_listening(way)


async def test_everything_shows_the_client_certificate(
    simulate: Simulate, serve: Serve, front: Front, tmp_path: Path, files: Files
) -> None:
    """Probes, questions for the engine, requests and searches for a response."""
    servers = await simulate(2)
    urls = [
        (await front(server.port, asks=version)).url
        for server, version in zip(servers, VERSIONS, strict=True)
    ]
    shown = client_certificate(tmp_path, "penstock.example")
    penstock = await serve(
        urls,
        pool={"tls": {"ca_file": str(files.ca)} | shown.settings},
        health={"timeout_s": 5, "deep": {"interval_s": 0.5, "timeout_s": 5}},
    )
    await penstock.until(
        lambda listing: all(each["engine"] and "deep" in each["last_probe"] for each in listing), 20
    )
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200
    more = BODIES[RESPONSES] | {"previous_response_id": "resp_nobodys"}
    assert (await ask(penstock, RESPONSES, more)).status == 404  # both were asked
    assert all(any(seen.path.startswith(RESPONSES) for seen in each.seen) for each in servers)


@pytest.mark.parametrize("wrong", ["none", "another authority's", "a server's"])
async def test_a_backend_that_refuses_the_certificate(
    serve: Serve, tmp_path: Path, files: Files, wrong: str
) -> None:
    """With TLS 1.3 it does so only after the handshake."""
    case: dict[str, Any] = {"usage": ExtendedKeyUsageOID.SERVER_AUTH}
    if wrong == "another authority's":
        case = {"by": trustme.CA()}
    shown = {} if wrong == "none" else client_certificate(tmp_path, **case).settings
    pool = {"tls": {"ca_file": str(files.ca)} | shown}
    for version in VERSIONS:
        with refusing(asking(version)) as url:
            penstock = await serve([url], ready=0, pool=pool, health={"timeout_s": 5})
            await until_untrusted(penstock)


async def test_a_renewed_client_certificate_is_shown(
    simulate: Simulate, serve: Serve, tmp_path: Path, front: Front, files: Files
) -> None:
    """Files that do not fit each other change nothing."""
    (server,) = await simulate()
    behind = await front(server.port, asks=ssl.TLSVersion.TLSv1_3)
    assert isinstance(behind, AskingFront)
    shown = client_certificate(tmp_path, "penstock.example")
    penstock = await serve([behind.url], pool={"tls": {"ca_file": str(files.ca)} | shown.settings})
    (first,) = set(behind.serials)
    client_certificate(tmp_path, "penstock.example")  # over the files that are in use
    assert (await penstock.reload())[0] == 200
    behind.serials.clear()
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200
    await until(lambda: len(behind.serials) >= 3)  # probes, too
    (second,) = set(behind.serials[1:])
    assert second != first
    client_certificate(tmp_path, name="other").key.replace(shown.key)
    status, said = await penstock.reload()
    assert status == 422
    assert "client.key is not the key of cert_file" in str(said)
    assert (await ask(penstock, COMPLETIONS, PROMPT)).status == 200
