"""Request bodies in a content coding, and with a byte order mark: their backend gets plain JSON."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import orjson
import pytest

from penstock.proxy.wire.content_coding import BOM, CODINGS
from tests.coded import coded
from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import RawBackend
from tests.e2e.wire import BODY, KEY, Client, request

WORDS = "all work and no play " * 100_000 + Random(1).randbytes(500_000).hex()
LARGE = orjson.dumps({"model": "sim-model", "prompt": WORDS})
LIMIT_BYTES = 5_000_000


@pytest.fixture
async def backend() -> AsyncIterator[RawBackend]:
    backend = RawBackend()
    await backend.start()
    yield backend
    await backend.stop()


@pytest.fixture
async def penstock(backend: RawBackend, serve: Serve) -> Penstock:
    limits = {"body_bytes": LIMIT_BYTES}
    return await serve(
        [backend.url], limits=limits, tenants=[{"name": "t", "keys": [{"key": KEY}]}]
    )


@pytest.mark.parametrize("body", [BODY, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("coding", [*CODINGS, b"X-GZIP", b"", b"identity"])
async def test_a_backend_gets_the_decoded_body(
    backend: RawBackend, penstock: Penstock, coding: bytes, body: bytes
) -> None:
    client = await Client.open(penstock)
    for given in (body, BOM + body):
        backend.expect()
        fields = [b"Content-Encoding: " + coding] if coding else []
        plain = coding in (b"", b"identity")
        sent = given if plain else coded(coding.lower().removeprefix(b"x-"), given)
        client.send(request(*fields, body=sent))
        assert (await client.answer()).status == 200
        (arrived,) = backend.arrived
        head, _, got = arrived.partition(b"\r\n\r\n")
        assert got == body
        assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
        assert (b"content-encoding" in head) is (coding == b"identity" and given is body)
    client.close()


async def test_what_is_not_taken_is_named(backend: RawBackend, penstock: Penstock) -> None:
    for coding in (b"br", b"deflate", b"gzip, gzip", b"zstd, gzip"):
        client = await Client.open(penstock, request(b"Content-Encoding: " + coding))
        answer = await client.answer()
        assert (answer.status, answer.code) == (415, "unsupported")
        assert f"`{coding.decode()}`" in answer.json["error"]["message"]
        assert answer.headers["accept-encoding"] == b", ".join(CODINGS).decode()
        client.close()
    assert not backend.arrived


@pytest.mark.parametrize("coding", CODINGS)
async def test_bodies_that_cannot_be_decoded_are_refused(
    backend: RawBackend, penstock: Penstock, coding: bytes
) -> None:
    client = await Client.open(penstock)
    spread = b'{"prompt":"' + bytes(range(97, 123)) * 250_000 + b'"}'
    assert len(spread) > LIMIT_BYTES
    bomb = b'{"prompt":"' + b"a" * 4_000_000 + b'"}'
    for body, status, code in (
        (BODY, 400, "invalid_request"),
        (coded(coding, LARGE)[:-9], 400, "invalid_request"),
        (coded(coding, BODY) + b"x", 400, "invalid_request"),
        (coded(coding, b"[]"), 400, "invalid_request"),
        (coded(coding, bomb), 413, "body_too_large"),
        (coded(coding, spread) + b"x" * 60_000, 413, "body_too_large"),
    ):
        client.send(request(b"Content-Encoding: " + coding, body=body))
        answer = await client.answer()
        assert (answer.status, answer.code) == (status, code), answer
        assert "all work" not in answer.json["error"]["message"]
    client.send(request(b"Content-Encoding: " + coding, body=coded(coding, BODY)))
    assert (await client.answer()).status == 200  # the connection is as good as new
    client.close()


async def test_clients_may_leave_while_their_bodies_are_decoded(
    backend: RawBackend, penstock: Penstock
) -> None:
    sent = request(b"Content-Encoding: gzip", body=coded(b"gzip", LARGE))
    leaving = [await Client.open(penstock, sent) for _ in range(20)]
    await asyncio.sleep(0.01)
    for client in leaving:
        client.close()
    client = await Client.open(penstock, sent)
    assert (await client.answer()).status == 200
    client.close()
    await penstock.until_at_rest()
