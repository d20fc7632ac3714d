"""What a reload changes for clients with certificates whose connections are open."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.certificates import client_certificate, issue
from tests.e2e.test_client_certificates import (
    CERTIFIED,
    COMPLETIONS,
    KEYED,
    ONE,
    PROMPT,
    TWO,
    VERSIONS,
    Certified,
    asked,
    certified,
    showing,
    status,
    tenants_of,
)
from tests.e2e.tls import TlsClient, post

__all__ = ["certified"]

LONG: dict[str, Any] = PROMPT | {"max_tokens": 60, "stream": True}


async def ends(client: TlsClient) -> str:
    """How the proxy ends an idle connection."""
    async with asyncio.timeout(5):
        return (await client.rest())[1]


async def test_a_tenant_that_is_removed_is_served_no_more(
    certified: Certified, tmp_path: Path
) -> None:
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


async def test_a_tenant_that_is_added_is_known_on_open_connections(
    certified: Certified, tmp_path: Path
) -> None:
    """Also one whose name the connection has shown before the reload, and nobody had."""
    _, penstock = await certified(tenants=CERTIFIED[1:] + KEYED)
    shows = showing(client_certificate(tmp_path, ONE))
    client = await TlsClient.open(penstock, context=shows)
    assert (await asked(client, b"X-Api-Key: sk-keyed-5f2c"))[0] == 200
    assert (await penstock.reload(tenants=CERTIFIED))[0] == 200
    assert (await asked(client))[0] == 200
    assert await tenants_of(penstock, 2) == ["keyed", "one"]


async def test_a_certificate_of_an_authority_that_is_replaced_counts_no_more(
    certified: Certified, tmp_path: Path
) -> None:
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


async def test_a_request_that_comes_after_all_is_refused(
    certified: Certified, tmp_path: Path
) -> None:
    """It was begun before its authority was replaced."""
    _, penstock = await certified()
    shows = showing(client_certificate(tmp_path, ONE))
    client = await TlsClient.open(penstock, b"POST ", context=shows)
    await asyncio.sleep(0.1)
    (tmp_path / "tls.ca").write_bytes(trustme.CA().cert_pem.bytes())
    assert (await penstock.reload())[0] == 200
    await client.send(post(COMPLETIONS, PROMPT)[5:])
    assert b" 401 " in (await client.rest())[0]


async def test_connections_without_a_certificate_end_when_one_is_needed(
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


@pytest.mark.parametrize("version", VERSIONS)
async def test_no_session_is_resumed_with_a_certificate_that_has_expired(
    certified: Certified, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """OpenSSL does not look at it again, for two hours."""
    _, penstock = await certified(tenants=[])
    until = datetime.now(UTC) + timedelta(seconds=4)
    shows = client_certificate(tmp_path, ONE, valid_for=timedelta(seconds=4))
    context = showing(shows, version)
    client = await TlsClient.open(penstock, context=context)
    assert (await asked(client))[0] == 200
    session = client.sock.session
    await asyncio.sleep((until - datetime.now(UTC)).total_seconds() + 1)
    assert (await asked(client))[0] == 200  # a connection that is open stays so

    async def late() -> tuple[int, bytes]:
        resumes = await TlsClient.open(penstock, context=context, session=session)
        return await asked(resumes)

    with pytest.raises((OSError, AssertionError)):
        await late()


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
