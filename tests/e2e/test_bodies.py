"""Bodies: unreadable, compressed, in forms, and long ones in pieces."""

from itertools import product
from random import Random

import openai
import orjson
import pytest

from penstock.proxy.data.decoders import BOM, CODINGS
from tests.coded import coded
from tests.e2e.process import Penstock, Serve, pool_of
from tests.e2e.raw_backend import RawBackend, RawBackends, answer
from tests.e2e.wire import BODY, KEY, Client, request

WORDS = "all work and no play " * 100_000 + Random(1).randbytes(500_000).hex()
LARGE = orjson.dumps({"model": "sim-model", "prompt": WORDS})
LIMIT_BYTES = 5_000_000


@pytest.fixture
async def penstock(raw_backend: RawBackend, serve: Serve) -> Penstock:
    tenants = [{"name": "t", "keys": [{"key": KEY}]}]
    return await serve([raw_backend.url], limits={"body_bytes": LIMIT_BYTES}, tenants=tenants)


async def test_backends_get_decoded_bodies(raw_backend: RawBackend, penstock: Penstock) -> None:
    client = await Client.open(penstock)
    for coding, body, mark in product(
        (*CODINGS, b"X-GZIP", b"", b"identity"), (BODY, LARGE), (b"", BOM)
    ):
        raw_backend.expect()
        given = mark + body
        fields = [b"Content-Encoding: " + coding] if coding else []
        plain = coding in (b"", b"identity")
        sent = given if plain else coded(coding.lower().removeprefix(b"x-"), given)
        client.send(request(*fields, body=sent))
        assert (await client.answer()).status == 200
        (arrived,) = raw_backend.arrived
        head, _, got = arrived.partition(b"\r\n\r\n")
        assert got == body
        assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
        assert (b"content-encoding" in head) is (coding == b"identity" and not mark)


async def test_unsupported_codings_are_refused(raw_backend: RawBackend, penstock: Penstock) -> None:
    for coding in (b"br", b"deflate", b"gzip, gzip", b"zstd, gzip"):
        client = await Client.open(penstock, request(b"Content-Encoding: " + coding))
        answer = await client.answer()
        assert (answer.status, answer.code) == (415, "unsupported")
        assert f"`{coding.decode()}`" in answer.json["error"]["message"]
        assert answer.headers["accept-encoding"] == b", ".join(CODINGS).decode()
        client.close()
    assert not raw_backend.arrived


async def test_undecodable_bodies_are_refused(penstock: Penstock) -> None:
    client = await Client.open(penstock)
    spread = b'{"prompt":"' + bytes(range(97, 123)) * 250_000 + b'"}'
    assert len(spread) > LIMIT_BYTES
    bomb = b'{"prompt":"' + b"a" * 4_000_000 + b'"}'
    for coding in CODINGS:
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


MODELS = ("whisper-large", "whisper-small")


async def test_audio_goes_to_the_pool_of_its_model(serve: Serve, raw_backends: RawBackends) -> None:
    backends = dict(zip(MODELS, await raw_backends(2), strict=True))
    for model, backend in backends.items():
        text = b'{"text":"by %b"}' % model.encode()
        backend.model = model.encode()
        backend.always = lambda _, text=text: (answer(text),)
    pools = [pool_of(model, {model: each}, models=[model]) for model, each in backends.items()]
    penstock = await serve([], ready=len(pools), pools=pools)
    sound = bytes(range(256)) * 8_192
    async with openai.AsyncOpenAI(base_url=f"{penstock.url}/v1", api_key="x") as client:
        for model in MODELS:
            made = await client.audio.transcriptions.create(model=model, file=("a.wav", sound))
            assert made.text == f"by {model}"
        with pytest.raises(openai.NotFoundError, match="model"):
            await client.audio.transcriptions.create(model="none", file=("a.wav", sound))
    assert all(sound in b"".join(backend.arrived) for backend in backends.values())
