"""The SDKs that people use, with nothing changed but `base_url`; and curl.

What they make of answers in each API: `test_clients_on_routes.py`.
"""

import shutil
import sys
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import orjson
import pytest
from anthropic.types import TextBlock

from penstock.bench.sim.prompt import render
from penstock.bench.sim.text import expected
from tests.e2e.forked import run_program as run
from tests.e2e.process import Fleet, Penstock

TOKENS = 40
QUESTION = 'Tell me of rivers, 水 and "bridges".'
USER: list[dict[str, str]] = [{"role": "user", "content": QUESTION}]
USER_TEXT = expected(render(USER), TOKENS)
PROMPT_TEXT = expected(QUESTION, TOKENS)


@pytest.fixture
async def gpt(fleet: Fleet) -> AsyncIterator[openai.AsyncOpenAI]:
    _, penstock = await fleet(2)
    async with openai.AsyncOpenAI(base_url=penstock.url + "/v1", api_key="k") as client:
        yield client


@pytest.fixture
async def claude(fleet: Fleet) -> AsyncIterator[anthropic.AsyncAnthropic]:
    _, penstock = await fleet(2)
    async with anthropic.AsyncAnthropic(base_url=penstock.url, api_key="k") as client:
        yield client


# OpenAI's, the current version -----------------------------------------------------------------


async def test_openai_the_rest(gpt: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in gpt.models.list()] == ["sim-model"]
    found = await gpt.embeddings.create(
        model="sim-model", input=["a", "b", "a"], encoding_format="float"
    )
    first, second, third = [item.embedding for item in found.data]
    assert first == third != second
    ask: Any = {"model": "sim-model", "input": "a", "encoding_format": "base64"}
    coded: Any = (await gpt.embeddings.create(**ask)).data[0].embedding
    assert list(array("f", b64decode(coded))) == pytest.approx(first)
    heard = await gpt.audio.transcriptions.create(model="sim-model", file=("a.wav", b"\0" * 9_000))
    assert heard.text


async def test_openai_stored_responses(gpt: openai.AsyncOpenAI) -> None:
    ask: Any = {"model": "sim-model", "input": QUESTION, "max_output_tokens": TOKENS}
    made = await gpt.responses.create(**ask)
    found = await gpt.responses.retrieve(made.id)
    assert found.output_text == made.output_text == USER_TEXT
    with pytest.raises(openai.NotFoundError):
        await gpt.responses.retrieve("resp_none")


async def test_openai_errors(gpt: openai.AsyncOpenAI) -> None:
    ask: Any = {"model": "sim-model", "messages": USER}
    with pytest.raises(openai.NotFoundError) as unknown:
        await gpt.chat.completions.create(**ask | {"model": "gpt-0"})
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await gpt.chat.completions.create(**ask | {"model": 5})
    assert bad.value.code == "invalid_request"
    with pytest.raises(openai.BadRequestError) as backends:
        await gpt.chat.completions.create(**ask | {"max_tokens": -1})
    assert backends.value.param == "max_tokens"
    assert unknown.value.response.headers["x-request-id"] == unknown.value.request_id


async def test_sdks_retry_what_they_should(fleet: Fleet) -> None:
    """A 502, 503 and 504 are tried again, after the time that penstock gives."""
    (server,), penstock = await fleet(health={"interval_s": 0.2})
    ask: Any = {"model": "sim-model", "messages": USER, "max_tokens": TOKENS}
    async with (
        openai.AsyncOpenAI(base_url=penstock.url + "/v1", api_key="k", max_retries=1) as gpt,
        anthropic.AsyncAnthropic(base_url=penstock.url, api_key="k", max_retries=1) as claude,
    ):
        server.faults.set("busy", times=1)
        whole = await gpt.chat.completions.create(**ask)
        assert whole.choices[0].message.content == USER_TEXT
        server.faults.set("busy", times=1)
        said = await claude.messages.create(**ask)
        assert isinstance(said.content[0], TextBlock)
        assert said.content[0].text == USER_TEXT
        server.faults.set("refuse")
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
        with pytest.raises(openai.InternalServerError) as none:
            await gpt.chat.completions.create(**ask)
        assert (none.value.status_code, none.value.code) == (503, "no_backend")
        with pytest.raises(anthropic.APIStatusError) as overloaded:
            await claude.messages.create(**ask)
        assert overloaded.value.status_code == 503
        server.faults.clear()
        await penstock.until_ready(1)
        assert (await gpt.chat.completions.create(**ask)).choices


# Anthropic's -----------------------------------------------------------------------------------


async def test_anthropic_counts_tokens(claude: anthropic.AsyncAnthropic) -> None:
    ask: Any = {"model": "sim-model", "messages": USER}
    whole = await claude.messages.create(**ask, max_tokens=TOKENS)
    assert whole.content[0].text == USER_TEXT
    counted = await claude.messages.count_tokens(**ask)
    assert counted.input_tokens == whole.usage.input_tokens


async def test_anthropic_errors(claude: anthropic.AsyncAnthropic) -> None:
    ask: Any = {"model": "claude-0", "messages": USER, "max_tokens": TOKENS}
    with pytest.raises(anthropic.NotFoundError, match="No pool serves this model"):
        await claude.messages.create(**ask)
    with pytest.raises(anthropic.BadRequestError, match="must be a string"):
        await claude.messages.create(**ask | {"model": 5})


# OpenAI's, the version before ------------------------------------------------------------------

VERSION_2 = """
import sys, json
sys.path.insert(0, sys.argv[1])
import openai
base_url, question, tokens = sys.argv[2], sys.argv[3], int(sys.argv[4])
assert openai.__version__.startswith("2."), openai.__version__
messages = [{"role": "user", "content": question}]
ask = {"model": "sim-model", "messages": messages, "max_tokens": tokens}
text = {}
with openai.OpenAI(base_url=base_url, api_key="k") as gpt:
    text["models"] = [model.id for model in gpt.models.list()]
    text["chat"] = gpt.chat.completions.create(**ask).choices[0].message.content
    chunks = list(gpt.chat.completions.create(**ask, stream=True))
    text["chat streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    ask = {"model": "sim-model", "input": question, "max_output_tokens": tokens}
    text["responses"] = gpt.responses.create(**ask).output_text
    events = list(gpt.responses.create(**ask, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    text["responses streamed"] = "".join(deltas)
    ask = {"model": "sim-model", "prompt": question, "max_tokens": tokens}
    text["completions"] = gpt.completions.create(**ask).choices[0].text
    chunks = list(gpt.completions.create(**ask, stream=True))
    text["completions streamed"] = "".join(chunk.choices[0].text for chunk in chunks)
    try:
        gpt.chat.completions.create(model="gpt-0", messages=[])
    except openai.NotFoundError as error:
        text["error"] = error.code
print(json.dumps(text))
"""


@pytest.mark.once
@pytest.mark.timeout(300)
async def test_openai_before_version_3(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From the package registry: some 10 s, more without a cache."""
    folder = str(tmp_path_factory.mktemp("openai-2"))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    await run(*pip, "--no-compile", "--target", folder, "openai<3,>=2", within_s=220)
    _, penstock = await fleet(2)
    told = await run(
        sys.executable, "-c", VERSION_2, folder, penstock.url + "/v1", QUESTION, str(TOKENS)
    )
    assert orjson.loads(told) == {
        "models": ["sim-model"],
        "chat": USER_TEXT,
        "chat streamed": USER_TEXT,
        "responses": USER_TEXT,
        "responses streamed": USER_TEXT,
        "completions": PROMPT_TEXT,
        "completions streamed": PROMPT_TEXT,
        "error": "model_not_found",
    }


# curl ------------------------------------------------------------------------------------------


async def curl(penstock: Penstock, *options: str, **fields: Any) -> bytes:
    path = shutil.which("curl")
    assert path, "this test needs curl (Debian: apt-get install curl)"
    ask = {"model": "sim-model", "prompt": QUESTION, "max_tokens": TOKENS, **fields}
    header = ("-H", "Content-Type: application/json", "-d", orjson.dumps(ask).decode())
    return await run(path, "-sS", *options, *header, f"{penstock.url}/v1/completions")


async def test_curl(fleet: Fleet) -> None:
    _, penstock = await fleet(2)
    for version in ("--http1.1", "--http1.0", "--http2"):  # the last offers an upgrade
        whole = orjson.loads(await curl(penstock, version, "--fail"))
        assert whole["choices"][0]["text"] == PROMPT_TEXT
        streamed = await curl(penstock, version, "-N", "--fail", stream=True)
        assert streamed.endswith(b"data: [DONE]\n\n")
        chunks = [
            orjson.loads(line[6:]) for line in streamed.split(b"\n") if line[:7] == b"data: {"
        ]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == PROMPT_TEXT
    large = "x" * 100_000  # curl says Expect: 100-continue
    whole = orjson.loads(await curl(penstock, "-H", "Expect: 100-continue", prompt=large))
    assert whole["choices"][0]["text"] == expected(large, TOKENS)
    headed = await curl(penstock, "-i", "-H", "x-request-id: mine")
    assert b"\r\nx-request-id: mine\r\n" in headed


async def test_curl_notices_a_cut_stream(fleet: Fleet) -> None:
    (server,), penstock = await fleet()
    server.faults.set("cut_mid_stream", tokens=3)
    for version in ("--http1.1", "--http1.0"):
        with pytest.raises(AssertionError, match=r"curl failed: curl: \((18|56)\)"):
            await curl(penstock, version, "-N", stream=True)
