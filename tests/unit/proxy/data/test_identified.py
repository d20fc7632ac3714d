"""A request is its connection's: the tenant of the certificate, and whose backend connections."""

import asyncio
from random import Random
from typing import Any

import pytest

from penstock.conf.settings import Settings
from penstock.proxy.data.acceptance import accept
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.errors.client import Unauthorized
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.client_certificate import ClientCertificate
from penstock.proxy.wire.contexts import Certificates
from penstock.proxy.wire.heads import RequestHead, parse_request_head
from penstock.proxy.wire.host import Names
from tests.unit.proxy.data.test_bodies import Client

AUTHORITY = b"ours"
TENANTS = [
    {"name": "one", "certificates": ["one.example"]},
    {"name": "two", "certificates": ["two.example"]},
    {"name": "keyed", "keys": [{"key": "sk-1"}]},
]


@pytest.fixture
async def plane() -> DataPlane:
    listen = {"tls": {"cert_file": "c", "key_file": "k", "client_ca_file": "ca"}}
    backends = [{"name": "b", "url": "http://127.0.0.1:1"}]
    settings = Settings.model_validate(
        {"listen": listen, "tenants": TENANTS, "pools": [{"name": "p", "backends": backends}]}
    )
    loop = asyncio.get_running_loop()
    new = draft(settings, {}, None, Certificates(None, {}, AUTHORITY))
    configuration = configure(new, loop, Names())
    return DataPlane(configuration, loop=loop, rng=Random(1), metrics=Metrics([]))


def accepted(plane: DataPlane, client: Client, *fields: bytes) -> RequestHead:
    lines = b"".join(b"\r\n" + each for each in fields)
    head = parse_request_head(b"POST /v1/completions HTTP/1.1\r\nHost: x" + lines)
    asked_by: Any = client
    try:
        accept(plane, head, asked_by)
    except Unauthorized:
        head.tenant = "nobody"
    return head


def connected(name: str | None) -> Client:
    certificate = ClientCertificate(AUTHORITY)
    certificate.names = None if name is None else (name,)
    return Client("192.0.2.1", proven=False, certificate=certificate)


EMPTY = b"Authorization: Bearer EMPTY"


@pytest.mark.parametrize("fields", [(), (EMPTY,)])
async def test_no_two_tenants_share_a_backends_connections(
    plane: DataPlane, fields: tuple[bytes, ...]
) -> None:
    """What a backend sends unasked must not become another tenant's answer."""
    clients = [connected("one.example"), connected("two.example")]
    heads = [accepted(plane, each, *fields) for each in clients for _ in range(2)]
    assert [head.tenant for head in heads] == ["one", "one", "two", "two"]
    credentials = [head.credentials for head in heads]
    assert credentials[0] == credentials[1] != credentials[2] == credentials[3]
    keyed = accepted(plane, connected(None), b"X-Api-Key: sk-1")
    assert keyed.tenant == "keyed"
    assert keyed.credentials not in credentials
    assert all(client.proven for client in clients)


async def test_who_is_refused_must_come_on_a_new_connection(plane: DataPlane) -> None:
    """Only there can it show a certificate."""
    client = connected(None)
    head = accepted(plane, client)
    assert (head.tenant, head.keep_alive, client.proven) == ("nobody", False, False)
    assert accepted(plane, connected("one.example")).keep_alive
