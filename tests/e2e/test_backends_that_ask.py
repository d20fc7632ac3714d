"""Backends that ask for a certificate: which one they are shown, and by whom."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.certificates import Files, authority, client_certificate, issue
from tests.e2e.process import Serve, Simulate
from tests.e2e.request import BODIES, ask
from tests.e2e.tls import TlsFront

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


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


@pytest.fixture
async def fronts() -> AsyncIterator[list[AskingFront]]:
    started: list[AskingFront] = []
    yield started
    for front in started:
        await front.stop()


def tls_of(shown: Files | None, ca: Path) -> dict[str, str]:
    return {"ca_file": str(ca)} | (shown.settings if shown else {})


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_probes_scrapes_and_searches_show_the_certificate(
    simulate: Simulate,
    serve: Serve,
    tmp_path: Path,
    fronts: list[AskingFront],
    version: ssl.TLSVersion,
) -> None:
    servers = await simulate(2)
    fronts += [AskingFront(server.port, version) for server in servers]
    for front in fronts:
        await front.start()
    shown = client_certificate(tmp_path, "penstock.example")
    pool = {"tls": tls_of(shown, issue(tmp_path).ca)}
    penstock = await serve(
        [front.url for front in fronts],
        pool=pool,
        health={"timeout_s": 5, "deep": {"interval_s": 0.5, "timeout_s": 5}},
    )
    await penstock.until(
        lambda listing: all(
            each["engine"] is not None and "deep" in each["last_probe"] for each in listing
        ),
        20,
    )
    assert (await ask(penstock, COMPLETIONS, BODIES[COMPLETIONS])).status == 200
    more = BODIES[RESPONSES] | {"previous_response_id": "resp_nobodys"}
    assert (await ask(penstock, RESPONSES, more)).status == 404  # both were asked
    assert all(any(seen.path.startswith(RESPONSES) for seen in each.seen) for each in servers)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wrong", ["none", "another authority's", "a server's"])
async def test_a_backend_that_refuses_it_is_told_of(
    serve: Serve, tmp_path: Path, version: ssl.TLSVersion, wrong: str
) -> None:
    """With TLS 1.3 it does so only after the handshake."""
    case: dict[str, Any] = {"usage": ExtendedKeyUsageOID.SERVER_AUTH}
    if wrong == "another authority's":
        case = {"by": trustme.CA()}
    shown = None if wrong == "none" else client_certificate(tmp_path, **case)
    pool = {"tls": tls_of(shown, issue(tmp_path).ca)}
    with refusing(asking(version)) as url:
        penstock = await serve([url], ready=0, pool=pool, health={"timeout_s": 5})
        await penstock.until(
            lambda listing: listing[0]["last_probe"].get("live", {}).get("reason") == "untrusted",
            20,
        )


async def test_a_renewed_certificate_is_shown_from_the_next_connection(
    simulate: Simulate, serve: Serve, tmp_path: Path, fronts: list[AskingFront]
) -> None:
    """Files that do not fit each other change nothing."""
    (server,) = await simulate()
    fronts.append(AskingFront(server.port))
    await fronts[0].start()
    shown = client_certificate(tmp_path, "penstock.example")
    pool = {"tls": tls_of(shown, issue(tmp_path).ca)}
    penstock = await serve([fronts[0].url], pool=pool)
    first = set(fronts[0].serials)
    assert len(first) == 1
    client_certificate(tmp_path, "penstock.example")  # over the files that are in use
    assert (await penstock.reload())[0] == 200
    fronts[0].serials.clear()
    assert (await ask(penstock, COMPLETIONS, BODIES[COMPLETIONS])).status == 200
    async with asyncio.timeout(5):
        while len(fronts[0].serials) < 3:  # probes, too
            await asyncio.sleep(0.01)
    second = set(fronts[0].serials[1:])
    assert len(second) == 1
    assert second != first
    client_certificate(tmp_path, name="other").key.replace(shown.key)
    status, said = await penstock.reload()
    assert status == 422
    assert "client.key is not the key of cert_file" in str(said)
    assert (await ask(penstock, COMPLETIONS, BODIES[COMPLETIONS])).status == 200
