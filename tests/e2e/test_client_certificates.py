"""Clients told by certificates: who comes in, as whom, and what goes upstream."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme
from cryptography import x509
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
async def certified(simulate: Simulate, serve: Serve, tmp_path: Path) -> AsyncIterator[Certified]:
    """A proxy that asks for certificates: `await certified(tenants=…)`."""
    files = issue(tmp_path)

    async def start(**config: Any) -> tuple[SimServer, Penstock]:
        (server,) = await simulate(profile=config.pop("profile", "instant"))
        tls = {**files.settings, "client_ca_file": str(files.ca)}
        listen = {"host": "127.0.0.1", "port": 0, "tls": tls}
        config = {"tenants": CERTIFIED, "log": {"level": "debug"}} | config
        return server, await serve([server], listen=listen, **config)

    yield start
    for client in TlsClient.opened:
        client.close()
    TlsClient.opened.clear()


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
    async with asyncio.timeout(5):
        while len(penstock.access_lines) < count:
            await asyncio.sleep(0.01)
    return [line["tenant"] for line in penstock.access_lines]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_certificate_tells_its_tenant(
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


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tenants", [[], CERTIFIED, CERTIFIED + KEYED])
async def test_a_certificate_that_does_not_verify_fails_the_handshake(
    certified: Certified, tmp_path: Path, version: ssl.TLSVersion, tenants: list[Any]
) -> None:
    """A key does not help."""
    server, penstock = await certified(tenants=tenants)
    key = b"Authorization: Bearer sk-keyed-5f2c"
    for case in BAD.values():
        shows = client_certificate(tmp_path, ONE, **case)
        assert await status(penstock, shows, key, version=version) == 0
    good = client_certificate(tmp_path, ONE)
    assert await status(penstock, good, version=version) == 200
    assert len([seen for seen in server.seen if seen.path == COMPLETIONS]) == 1
    assert "penstock_tls_handshakes_failed_total 4.0" in await penstock.metrics()
    said = b"".join(penstock.log).decode() + str(penstock.access_lines)
    assert ONE not in said
    assert "tenant-one" not in said


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("tenants", "without"), [([], 0), (CERTIFIED, 0), (CERTIFIED + KEYED, 401), (KEYED, 401)]
)
async def test_only_where_a_key_may_do_no_certificate_is_needed(
    certified: Certified, version: ssl.TLSVersion, tenants: list[Any], without: int
) -> None:
    _, penstock = await certified(tenants=tenants)
    assert await status(penstock, None, version=version) == without
    key = b"Authorization: Bearer sk-keyed-5f2c"
    assert await status(penstock, None, key, version=version) == (200 if without else 0)


def dns(name: str) -> x509.GeneralName:
    return x509.DNSName(name)


def email(name: str) -> x509.GeneralName:
    return x509.RFC822Name(name)


@pytest.mark.parametrize(
    ("names", "more"),
    [
        ((), {}),  # only the common name is that of a tenant
        (("nobody.example",), {}),
        ((ONE, TWO), {}),
        (("*.example",), {}),
        ((TWO + "/more",), {}),
        ((TWO,), {"kinds": dns}),  # the authority has checked it as a DNS name
        ((ONE,), {"kinds": email}),
        ((ONE, *(f"n{number}.example" for number in range(64))), {}),
    ],
)
async def test_a_certificate_of_nobody_is_as_none(
    certified: Certified, tmp_path: Path, names: tuple[str, ...], more: dict[str, Any]
) -> None:
    """Then a key counts, and without one the answer is that for a wrong key."""
    tenants = [*CERTIFIED, *KEYED, {"name": "cn", "certificates": ["tenant-one.example"]}]
    _, penstock = await certified(tenants=tenants)
    shows = showing(client_certificate(tmp_path, *names, **more))
    answers = [
        await asked(await TlsClient.open(penstock, context=context), *fields)
        for context, fields in (
            (shows, ()),
            (shows, (b"Authorization: Bearer sk-wrong",)),
            (showing(None), (b"Authorization: Bearer sk-wrong",)),
        )
    ]
    assert len(set(answers)) == 1
    assert answers[0][0] == 401
    assert orjson.loads(answers[0][1])["error"]["code"] == "unauthorized"
    client = await TlsClient.open(penstock, context=shows)
    assert (await asked(client, b"X-Api-Key: sk-keyed-5f2c"))[0] == 200
    assert (await tenants_of(penstock, 4))[-1] == "keyed"


async def test_a_key_beside_a_certificate(certified: Certified, tmp_path: Path) -> None:
    """One of another tenant is refused. One of nobody is what SDKs send that have none."""
    with_both = {
        "name": "both",
        "certificates": ["both.example"],
        "keys": [{"key": "sk-both-77de"}],
    }
    tenants = [*CERTIFIED, *KEYED, with_both]
    _, penstock = await certified(tenants=tenants)
    one = client_certificate(tmp_path, ONE)
    both = client_certificate(tmp_path, "both.example", name="both")
    keyed, own = b"Authorization: Bearer sk-keyed-5f2c", b"Authorization: Bearer sk-both-77de"
    got = [await status(penstock, shows, key) for shows in (one, both) for key in (keyed, own)]
    assert got == [401, 401, 401, 200]
    assert await status(penstock, one, b"Authorization: Bearer EMPTY") == 200
    assert await status(penstock, None, own) == 200
    assert (await tenants_of(penstock, 6))[-3:] == ["both", "one", "both"]


@pytest.mark.parametrize(
    ("forward", "key", "sent"),
    [
        (None, "sk-pool-77de", [b"Bearer sk-pool-77de"]),
        (None, None, []),
        ("none", "sk-pool-77de", []),
        ("client", "sk-pool-77de", [b"Bearer EMPTY"]),
    ],
)
async def test_what_a_certified_client_sends_as_a_key_goes_where_keys_go(
    certified: Certified, tmp_path: Path, forward: str | None, key: str | None, sent: list[bytes]
) -> None:
    pool = {"forward_authorization": forward, "api_key": key}
    server, penstock = await certified(pool=pool)
    shows = client_certificate(tmp_path, ONE)
    fields = (
        b"Authorization: Bearer EMPTY",
        b"X-Forwarded-Client-Cert: Hash=x;URI=" + TWO.encode(),
    )
    assert await status(penstock, shows, *fields) == 200
    (seen,) = (each for each in server.seen if each.path == COMPLETIONS)
    headers = [(name.lower(), value) for name, value in seen.headers]
    assert [value for name, value in headers if name == b"authorization"] == sent
    assert b"x-forwarded-client-cert" not in dict(headers)


async def test_health_needs_a_certificate_only_where_all_do(certified: Certified) -> None:
    _, penstock = await certified(tenants=KEYED)
    client = await TlsClient.open(penstock, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await client.until(b'{"status":"ok"}')


# What is bounded ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_certificates_of_a_client_are_no_longer_than_they_need_be(
    certified: Certified, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Neither a chain nor one with thousands of names. Usual ones have their issuers with them."""
    _, penstock = await certified()
    other = trustme.CA().cert_pem.bytes()
    chain = client_certificate(tmp_path, ONE, more=other * 60, name="chain")
    names = client_certificate(tmp_path, ONE, *(f"{n}.e" for n in range(3_000)), name="names")
    usual = client_certificate(tmp_path, ONE, more=other * 4, name="usual")
    many = client_certificate(tmp_path, ONE, *(f"{n}.e" for n in range(1_000)), name="many")
    got = [await status(penstock, each, version=version) for each in (chain, names, usual, many)]
    assert got == [0, 0, 200, 401]


async def test_sessions_that_openssl_would_keep_are_not_begun(
    certified: Certified, tmp_path: Path
) -> None:
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
