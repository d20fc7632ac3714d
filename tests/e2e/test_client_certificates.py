"""Clients told by certificates: who comes in, as whom, and what a reload changes."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.bench.sim.server import SimServer
from tests.certificates import Files, client_certificate, client_context, issue
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.tls import TlsClient, post

COMPLETIONS = "/v1/completions"
PROMPT: dict[str, Any] = {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 2}
ONE, TWO = "one.example", "spiffe://acme/two"
CERTIFIED = [{"name": "one", "certificates": [ONE]}, {"name": "two", "certificates": [TWO]}]
KEYED = [{"name": "keyed", "keys": [{"key": "sk-keyed-5f2c"}]}]
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
Certified = Callable[..., Awaitable[tuple[SimServer, Penstock]]]


@pytest.fixture
def certified(simulate: Simulate, serve: Serve, tmp_path: Path) -> Certified:
    """A proxy that asks for certificates: `await certified(tenants=…)`."""
    files = issue(tmp_path)

    async def start(**config: Any) -> tuple[SimServer, Penstock]:
        (server,) = await simulate(profile=config.pop("profile", "instant"))
        tls = {**files.settings, "client_ca_file": str(files.ca)}
        listen = {"host": "127.0.0.1", "port": 0, "tls": tls}
        config = {"tenants": CERTIFIED, "log": {"level": "debug"}} | config
        return server, await serve([server], listen=listen, **config)

    return start


def showing(shows: Files | None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = client_context(shows)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


async def asked(client: TlsClient, *fields: bytes, path: str = COMPLETIONS) -> tuple[int, bytes]:
    """Status and body of a request on this connection."""
    await client.send(post(path, PROMPT, *fields))
    got = await client.until(b"\r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += await asyncio.to_thread(client.sock.recv, 65_536)
    return int(head.split(b" ")[1]), body


async def status(penstock: Penstock, shows: Files | None, *fields: bytes, **context: Any) -> int:
    """The status of a request on a new connection. 0: there was no handshake."""
    try:
        client = await TlsClient.open(penstock, context=showing(shows, **context))
        got, _ = await asked(client, *fields)
    except (OSError, AssertionError):
        return 0
    client.say_and_close()
    return got


async def tenants_of(penstock: Penstock, count: int) -> list[str | None]:
    return [line["tenant"] for line in await penstock.lines(count)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_certificate_names_its_tenant(
    certified: Certified, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    _, penstock = await certified()
    for number, names in enumerate([(ONE,), ("other.example", TWO), (TWO, ONE.upper())]):
        shows = client_certificate(tmp_path, *names, name=f"c{number}")
        client = await TlsClient.open(penstock, context=showing(shows, version))
        assert [(await asked(client))[0] for _ in range(2)] == [200, 200]
    assert await tenants_of(penstock, 6) == ["one"] * 2 + ["two"] * 4


BAD: dict[str, dict[str, Any]] = {
    "expired": {"valid_for": -timedelta(hours=1)},
    "self-signed": {"self_signed": True},
    "another authority's": {"by": trustme.CA()},
    "a server's": {"usage": ExtendedKeyUsageOID.SERVER_AUTH},
}


@pytest.mark.parametrize("tenants", [[], CERTIFIED + KEYED])
async def test_unverified_certificates_fail_the_handshake(
    certified: Certified, tmp_path: Path, tenants: list[Any]
) -> None:
    """A key does not help."""
    server, penstock = await certified(tenants=tenants)
    key = b"Authorization: Bearer sk-keyed-5f2c"
    for version in VERSIONS:
        for case in BAD.values():
            shows = client_certificate(tmp_path, ONE, **case)
            assert await status(penstock, shows, key, version=version) == 0
        good = client_certificate(tmp_path, ONE)
        assert await status(penstock, good, version=version) == 200
    assert len([seen for seen in server.seen if seen.path == COMPLETIONS]) == 2
    assert "penstock_tls_handshakes_failed_total 8.0" in await penstock.metrics()
    said = b"".join(penstock.log).decode() + str(penstock.access_lines)
    assert ONE not in said
    assert "tenant-one" not in said


async def test_backends_get_no_word_of_certificates(certified: Certified, tmp_path: Path) -> None:
    """Neither the client's key, nor what it says of certificates itself."""
    server, penstock = await certified(pool={"api_key": "sk-pool-77de"})
    claims = b"X-Forwarded-Client-Cert: Hash=x;URI=" + TWO.encode()
    shows = client_certificate(tmp_path, ONE)
    assert await status(penstock, shows, b"Authorization: Bearer EMPTY", claims) == 200
    (seen,) = (each for each in server.seen if each.path == COMPLETIONS)
    headers = [(name.lower(), value) for name, value in seen.headers]
    keys = [value for name, value in headers if name == b"authorization"]
    assert keys == [b"Bearer sk-pool-77de"]
    assert b"x-forwarded-client-cert" not in dict(headers)


async def test_too_long_certificates_are_refused(certified: Certified, tmp_path: Path) -> None:
    """A chain, or one with thousands of names. Usual ones have their issuers with them."""
    _, penstock = await certified()
    other = trustme.CA().cert_pem.bytes()
    chain = client_certificate(tmp_path, ONE, more=other * 60, name="chain")
    names = client_certificate(tmp_path, ONE, *(f"{n}.e" for n in range(3_000)), name="names")
    usual = client_certificate(tmp_path, ONE, more=other * 4, name="usual")
    many = client_certificate(tmp_path, ONE, *(f"{n}.e" for n in range(1_000)), name="many")
    for version in VERSIONS:
        got = [
            await status(penstock, each, version=version) for each in (chain, names, usual, many)
        ]
        assert got == [0, 0, 200, 401]


async def test_sessions_without_tickets_are_refused(certified: Certified, tmp_path: Path) -> None:
    """One of TLS 1.2 without tickets is kept with all certificates: 20,480 took 2 GB."""
    _, penstock = await certified(tenants=CERTIFIED + KEYED)
    context = showing(client_certificate(tmp_path, ONE), ssl.TLSVersion.TLSv1_2)
    context.options |= ssl.OP_NO_TICKET
    with pytest.raises(OSError):  # noqa: PT011 - as the kernel tells it
        await TlsClient.open(penstock, context=context)
    keyed = showing(None, ssl.TLSVersion.TLSv1_2)
    keyed.options |= ssl.OP_NO_TICKET
    client = await TlsClient.open(penstock, context=keyed)
    assert (await asked(client, b"X-Api-Key: sk-keyed-5f2c"))[0] == 200


LONG: dict[str, Any] = PROMPT | {"max_tokens": 60, "stream": True}


async def ends(client: TlsClient) -> str:
    """How the proxy ends an idle connection."""
    async with asyncio.timeout(5):
        return (await client.rest())[1]


async def test_a_removed_tenant_is_no_longer_served(certified: Certified, tmp_path: Path) -> None:
    _, penstock = await certified()
    shows = showing(client_certificate(tmp_path, ONE))
    client = await TlsClient.open(penstock, context=shows)
    assert (await asked(client))[0] == 200
    moved = [{"name": "three", "certificates": [ONE]}, CERTIFIED[1]]
    assert (await penstock.reload(tenants=moved))[0] == 200
    assert (await asked(client))[0] == 200
    assert (await penstock.reload(tenants=CERTIFIED[1:]))[0] == 200
    assert (await asked(client))[0] == 401
    assert await ends(client) == "told"
    assert await tenants_of(penstock, 3) == ["one", "three", None]


async def test_a_replaced_authority_ends_connections(certified: Certified, tmp_path: Path) -> None:
    """Idle connections end at once. One with a stream ends after it."""
    _, penstock = await certified(profile="steady-50")
    shows = showing(client_certificate(tmp_path, ONE))
    idle = await TlsClient.open(penstock, context=shows)
    assert (await asked(idle))[0] == 200
    streams = await TlsClient.open(penstock, post(COMPLETIONS, LONG), context=shows)
    await streams.until(b"text")
    (tmp_path / "tls.ca").write_bytes(trustme.CA().cert_pem.bytes())
    assert (await penstock.reload())[0] == 200
    got, end = await streams.rest()
    assert (b"data: [DONE]" in got, end) == (True, "told")
    assert await ends(idle) == "told"
    assert await status(penstock, client_certificate(tmp_path, ONE)) == 0


async def test_a_newly_required_certificate_ends_connections(
    certified: Certified, tmp_path: Path
) -> None:
    """There are no tenants, so nobody would ask for a key."""
    _, penstock = await certified(tenants=KEYED)
    files = issue(tmp_path)
    plain = {"host": "127.0.0.1", "port": 0, "tls": files.settings}
    assert (await penstock.reload(tenants=[], listen=plain))[0] == 200
    client, other = [await TlsClient.open(penstock) for _ in range(2)]
    await other.send(b"POST ")
    assert (await asked(client))[0] == 200
    asks = plain | {"tls": {**files.settings, "client_ca_file": str(files.ca)}}
    assert (await penstock.reload(listen=asks))[0] == 200
    assert await ends(client) == "told"
    await other.send(post(COMPLETIONS, PROMPT)[5:])
    assert b" 401 " in (await other.rest())[0]
    assert await status(penstock, None) == 0
    assert await status(penstock, client_certificate(tmp_path, "anybody.example")) == 200


async def test_no_session_resumes_an_expired_certificate(
    certified: Certified, tmp_path: Path
) -> None:
    """OpenSSL does not look at it again, for two hours."""
    _, penstock = await certified(tenants=[])
    ends = datetime.now(UTC) + timedelta(seconds=4)
    shows = client_certificate(tmp_path, ONE, valid_for=timedelta(seconds=4))
    contexts = [showing(shows, version) for version in VERSIONS]
    clients = [await TlsClient.open(penstock, context=context) for context in contexts]
    assert [(await asked(client))[0] for client in clients] == [200, 200]
    await asyncio.sleep((ends - datetime.now(UTC)).total_seconds() + 1)
    for client, context in zip(clients, contexts, strict=True):
        assert (await asked(client))[0] == 200  # a connection that is open stays so
        with pytest.raises((OSError, AssertionError)):
            await asked(
                await TlsClient.open(penstock, context=context, session=client.sock.session)
            )


@pytest.mark.parametrize("version", VERSIONS)
async def test_no_ticket_outlives_a_reload(
    certified: Certified, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """It would show a certificate that nobody verifies."""
    _, penstock = await certified(tenants=CERTIFIED + KEYED)
    context = showing(client_certificate(tmp_path, ONE), version)
    client = await TlsClient.open(penstock, context=context)
    assert (await asked(client))[0] == 200
    session = client.sock.session

    def again() -> TlsClient:
        return TlsClient(penstock, context=context, session=session)

    resumed = await asyncio.to_thread(again)
    assert resumed.sock.session_reused
    assert (await asked(resumed))[0] == 200
    without = [{"name": "two", "certificates": [TWO]}, *KEYED]
    assert (await penstock.reload(tenants=without))[0] == 200
    anew = await asyncio.to_thread(again)
    assert not anew.sock.session_reused
    assert (await asked(anew))[0] == 401
    assert (await asked(resumed))[0] == 401
    (tmp_path / "tls.ca").write_bytes(trustme.CA().cert_pem.bytes())
    assert (await penstock.reload(tenants=CERTIFIED))[0] == 200
    with pytest.raises((OSError, AssertionError)):
        await asked(await asyncio.to_thread(again))
