"""Pools by model for audio: the model stands in a multipart form, before or after the file."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import openai
import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import RawBackend, answer
from tests.e2e.wire import Client

MODELS = ("whisper-large", "whisper-small")
Two = Callable[[], Awaitable[tuple[Penstock, list[RawBackend]]]]


@pytest.fixture
async def two(serve: Serve) -> AsyncIterator[Two]:
    """A proxy before two pools, each of one model."""
    backends = [RawBackend() for _ in MODELS]
    for backend, model in zip(backends, MODELS, strict=True):
        text = b'{"text":"by %b"}' % model.encode()
        backend.model = model.encode()
        backend.always = lambda _, text=text: (answer(text),)
        await backend.start()

    async def start() -> tuple[Penstock, list[RawBackend]]:
        pools = [
            {"name": model, "models": [model], "backends": [{"name": model, "url": backend.url}]}
            for backend, model in zip(backends, MODELS, strict=True)
        ]
        return await serve([], ready=len(pools), pools=pools), backends

    yield start
    for backend in backends:
        await backend.stop()


async def test_audio_goes_to_the_pool_of_its_model(two: Two) -> None:
    penstock, backends = await two()
    sound = bytes(range(256)) * 8_192
    async with openai.AsyncOpenAI(base_url=f"{penstock.url}/v1", api_key="x") as client:
        for model in MODELS:
            made = await client.audio.transcriptions.create(model=model, file=("a.wav", sound))
            assert made.text == f"by {model}"
        with pytest.raises(openai.NotFoundError, match="model"):
            await client.audio.transcriptions.create(model="none", file=("a.wav", sound))
    assert all(sound in b"".join(backend.arrived) for backend in backends)


async def test_a_model_after_a_large_file_and_no_model(two: Two) -> None:
    penstock, _ = await two()
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n'
    model = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data"
    for named, served in (
        (model % b"whisper-small", "whisper-small"),
        (model % b"whisper-large" + model % b"whisper-small", None),
        (b"", "whisper-large"),
        (model % b"", "whisper-large"),
    ):
        body = file % (b"\r\n--" * 500_000) + named + b"--b--\r\n"
        request = head + b"; boundary=b\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        async with asyncio.timeout(20):
            client = await Client.open(penstock, request)
            got = await client.answer()
        status = 200 if served is not None else 400
        assert (got.status, got.headers.get("x-penstock-backend")) == (status, served)
        client.close()
