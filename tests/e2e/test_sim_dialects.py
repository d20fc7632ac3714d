"""The simulated server speaks vLLM's dialects, event by event."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from penstock.bench.sim.prompt import Prompt, render
from penstock.bench.sim.server import SimServer
from penstock.bench.sim.text import expected

pytestmark = pytest.mark.once

HELLO = [{"role": "user", "content": "hello"}]
PROMPT_TOKENS = Prompt.from_messages(HELLO).tokens
ANSWER = expected(render(HELLO), 5)
CHAT = "/v1/chat/completions"
Post = dict[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    server = await SimServer(profile="instant", clock=lambda: 1_700_000_000.0).start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: SimServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as client:
        yield client


async def events(client: aiohttp.ClientSession, path: str, body: Post) -> list[str]:
    """The SSE events of a streamed answer, one per HTTP chunk."""
    async with client.post(path, json={"stream": True, **body}) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["server"] == "uvicorn"
        text = (await response.read()).decode()
    assert text.endswith("\n\n")
    return text.split("\n\n")[:-1]


def data(event: str) -> Any:
    return json.loads(event.rpartition("data: ")[2] if "\ndata: " in event else event[6:])


async def whole(client: aiohttp.ClientSession, path: str, body: Post, status: int = 200) -> Any:
    async with client.post(path, json=body) as response:
        assert response.status == status
        assert response.headers["content-type"] == "application/json"
        return json.loads(await response.read())


async def test_chat_streams_role_tokens_and_done(client: aiohttp.ClientSession) -> None:
    body = {"messages": HELLO, "max_tokens": 5}
    *chunks, done = await events(client, CHAT, body)
    assert done == "data: [DONE]"
    role, *deltas = map(data, chunks)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(deltas) == 5
    assert "".join(delta["choices"][0]["delta"]["content"] for delta in deltas) == ANSWER
    finishes = [delta["choices"][0]["finish_reason"] for delta in deltas]
    assert finishes == [None] * 4 + ["length"]
    assert all("usage" not in chunk for chunk in (role, *deltas))


async def test_chat_chunks_are_byte_for_byte_those_of_vllm(client: aiohttp.ClientSession) -> None:
    async with client.post(
        CHAT,
        json={"messages": HELLO, "max_tokens": 2, "stream": True},
        headers={"x-request-id": "abc-123"},
    ) as response:
        raw = await response.read()
    head = (
        'data: {"id":"chatcmpl-abc-123","object":"chat.completion.chunk","created":1700000000,'
        '"model":"sim-model","choices":[{"index":0,"delta":'
    )
    first, second = (json.dumps(expected(render(HELLO), n)) for n in (1, 2))
    last = '"' + second[len(first) - 1 :]
    fingerprint = data(raw.decode().split("\n\n")[2])["system_fingerprint"]
    assert raw.decode() == (
        f'{head}{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],'
        '"prompt_token_ids":null,"prompt_text":null}\n\n'
        f'{head}{{"content":{first}}},"logprobs":null,"finish_reason":null,"token_ids":null}}]}}\n\n'
        f'{head}{{"content":{last}}},"logprobs":null,"finish_reason":"length","stop_reason":null,'
        f'"token_ids":null}}],"system_fingerprint":"{fingerprint}"}}\n\n'
        "data: [DONE]\n\n"
    )


async def test_chat_whole_equals_chat_streamed(client: aiohttp.ClientSession) -> None:
    answer = await whole(client, CHAT, {"messages": HELLO, "max_completion_tokens": 5})
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + 5,
        "completion_tokens": 5,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_usage_comes_in_its_own_chunk_without_choices(
    client: aiohttp.ClientSession, path: str
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": HELLO, "prompt": "x" * 16, "max_tokens": 3, "stream_options": options}
    *chunks, usage, _ = await events(client, path, body)
    final = data(usage)
    assert final["choices"] == []
    counts = [data(chunk)["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == ([0, 1, 2, 3] if path == CHAT else [1, 2, 3])
    assert final["usage"]["completion_tokens"] == 3
    assert final["usage"]["total_tokens"] == final["usage"]["prompt_tokens"] + 3
    plain = await events(client, path, {**body, "stream_options": {"include_usage": True}})
    assert len(plain) == len(chunks) + 2
    assert all("usage" not in data(chunk) for chunk in plain[:-2])


async def test_completions_interleave_prompts_and_choices_by_index(
    client: aiohttp.ClientSession,
) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 4}
    *chunks, _ = await events(client, "/v1/completions", body)
    texts = ["", "", "", ""]
    for choice in (data(chunk)["choices"][0] for chunk in chunks):
        texts[choice["index"]] += choice["text"]
    assert texts == [expected(prompt, 4, choice) for prompt in ("one", "two") for choice in (0, 1)]
    answer = await whole(client, "/v1/completions", body)
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 16


async def test_token_ids_continue_like_their_text(client: aiohttp.ClientSession) -> None:
    body = {"messages": HELLO, "max_tokens": 5, "return_token_ids": True}
    first, *chunks, _ = await events(client, CHAT, body)
    ids = data(first)["prompt_token_ids"]
    ids += [i for chunk in chunks[:2] for i in data(chunk)["choices"][0]["token_ids"]]
    resumed = await whole(client, "/v1/completions", {"prompt": ids, "max_tokens": 3})
    said = "".join(data(chunk)["choices"][0]["delta"]["content"] for chunk in chunks[:2])
    assert said + resumed["choices"][0]["text"] == ANSWER
    assert resumed["usage"]["prompt_tokens"] == len(ids)


async def test_responses_stream_numbered_events_without_done(
    client: aiohttp.ClientSession,
) -> None:
    parts = await events(client, "/v1/responses", {"input": "hello", "max_output_tokens": 5})
    names = [part.splitlines()[0].removeprefix("event: ") for part in parts]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    bodies = [data(part) for part in parts]
    assert [body["type"] for body in bodies] == names
    assert [body["sequence_number"] for body in bodies] == list(range(len(parts)))
    assert "".join(body["delta"] for body in bodies[4:9]) == ANSWER == bodies[9]["text"]
    final = bodies[-1]["response"]
    assert final["status"] == "incomplete"
    assert final["usage"]["output_tokens"] == 5


async def test_responses_are_kept_continued_and_beyond_cancelling(
    client: aiohttp.ClientSession,
) -> None:
    first = await whole(client, "/v1/responses", {"input": "hello", "max_output_tokens": 5})
    async with client.get(f"/v1/responses/{first['id']}") as response:
        assert await response.json() == first
    body = {"input": "and?", "previous_response_id": first["id"], "max_output_tokens": 5}
    second = await whole(client, "/v1/responses", body)
    conversation = [
        *HELLO,
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "and?"},
    ]
    assert second["output"][0]["content"][0]["text"] == expected(render(conversation), 5)
    await whole(client, f"/v1/responses/{first['id']}/cancel", {}, status=400)
    await whole(client, "/v1/responses/resp_none/cancel", {}, status=404)
    body["previous_response_id"] = "resp_none"
    await whole(client, "/v1/responses", body, status=404)


async def test_messages_stream_anthropic_events(client: aiohttp.ClientSession) -> None:
    body = {"messages": HELLO, "max_tokens": 5, "model": "sim-model"}
    parts = await events(client, "/v1/messages", body)
    names = [part.splitlines()[0].removeprefix("event: ") for part in parts]
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 5,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(data(part)["delta"]["text"] for part in parts[2:7]) == ANSWER
    assert data(parts[-2])["usage"] == {"input_tokens": PROMPT_TOKENS, "output_tokens": 5}
    answer = await whole(client, "/v1/messages", body)
    assert answer["content"] == [{"type": "text", "text": ANSWER}]
    counted = await whole(client, "/v1/messages/count_tokens", body)
    assert counted["input_tokens"] == PROMPT_TOKENS


@pytest.mark.parametrize(
    ("path", "body", "items"),
    [
        ("/v1/embeddings", {"input": ["a", "b"]}, "data"),
        ("/v1/embeddings", {"input": [[1, 2], [3]]}, "data"),
        ("/pooling", {"input": ["a", "b"]}, "data"),
        ("/classify", {"input": ["a", "b"]}, "data"),
        ("/score", {"text_1": "q", "text_2": ["a", "b"]}, "data"),
        ("/v1/score", {"queries": ["q", "r"], "documents": ["a", "b"]}, "data"),
        ("/rerank", {"query": "q", "documents": ["a", "b"]}, "results"),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}, "results"),
        ("/v2/rerank", {"query": "q", "documents": ["a", "b", "c"], "top_n": 2}, "results"),
    ],
)
async def test_pooling_endpoints_answer_one_item_per_input(
    server: SimServer, client: aiohttp.ClientSession, path: str, body: Post, items: str
) -> None:
    answer = await whole(client, path, body)
    assert len(answer[items]) == 2
    assert sorted(item["index"] for item in answer["data"]) == [0, 1] if items == "data" else True
    assert answer["usage"]["prompt_tokens"] == server.engine.prompt_tokens_total > 0


async def test_tokenize_and_detokenize_agree(client: aiohttp.ClientSession) -> None:
    tokens = await whole(client, "/tokenize", {"prompt": "hello wörld"})
    assert tokens["count"] == len(tokens["tokens"]) == 3
    text = await whole(client, "/detokenize", {"tokens": tokens["tokens"]})
    assert text == {"prompt": "hello wörld"}
    assert (await whole(client, "/tokenize", {"messages": HELLO}))["count"] == PROMPT_TOKENS


async def test_transcription_takes_multipart_and_ignores_the_boundary(
    client: aiohttp.ClientSession,
) -> None:
    texts = set()
    for _ in range(2):
        form = aiohttp.FormData({"model": "sim-model"})
        form.add_field("file", b"\x00" * 1_000, filename="a.wav")
        async with client.post("/v1/audio/transcriptions", data=form) as response:
            texts.add((await response.json())["text"])
    assert len(texts) == 1


async def test_fixed_answers(server: SimServer, client: aiohttp.ClientSession) -> None:
    async with client.get("/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with client.get("/v1/models") as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["max_model_len"]) == ("sim-model", 131_072)
    async with client.get("/version") as response:
        assert await response.json() == {"version": "0.32.0"}
    async with client.get("/load") as response:
        assert await response.json() == {"server_load": 0}
    async with client.get("/nothing") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
    async with client.get(CHAT) as response:
        assert response.status == 405


async def test_metrics_follow_the_engine(client: aiohttp.ClientSession) -> None:
    await whole(client, CHAT, {"messages": HELLO, "max_tokens": 5})
    async with client.get("/metrics") as response:
        text = await response.text()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    labels = '{engine="0",model_name="sim-model"}'
    assert samples[f"vllm:generation_tokens_total{labels}"] == "5.0"
    assert samples[f"vllm:prompt_tokens_total{labels}"] == f"{PROMPT_TOKENS}.0"
    assert samples[f"vllm:num_requests_running{labels}"] == "0.0"
    (config,) = (name for name in samples if name.startswith("vllm:cache_config_info"))
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="25000"' in config


async def test_a_prompt_that_was_there_before_is_found_in_the_cache() -> None:
    server = await SimServer(profile="8b-1xh100").start()
    body = {"prompt": "tell " * 400, "max_tokens": 1}  # 500 tokens
    async with aiohttp.ClientSession(server.url) as client:
        for _ in range(2):
            await whole(client, "/v1/completions", body)
        async with client.get("/metrics") as response:
            text = await response.text()
    await server.stop()
    found = {line.partition("{")[0]: line.split()[-1] for line in text.splitlines()}
    assert found["vllm:prefix_cache_queries_total"] == "1000.0"
    assert found["vllm:prefix_cache_hits_total"] == "496.0"


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param"),
    [
        (CHAT, {"messages": HELLO, "model": "other"}, 404, "NotFoundError", "model"),
        (CHAT, {}, 400, "Bad Request", "body.messages"),
        (CHAT, {"messages": HELLO, "max_tokens": "9"}, 400, "Bad Request", "body.max_tokens"),
        (CHAT, {"messages": HELLO, "max_tokens": 200_000}, 400, "BadRequestError", "max_tokens"),
        ("/v1/completions", {"prompt": "x" * 600_000}, 400, "BadRequestError", "input_tokens"),
        ("/v1/completions", {"prompt": [-1]}, 400, "Bad Request", "body.prompt"),
    ],
)
async def test_errors_come_before_the_stream(
    client: aiohttp.ClientSession, path: str, body: Post, status: int, kind: str, param: str
) -> None:
    answer = await whole(client, path, {"stream": True, **body}, status=status)
    error = answer["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)


async def test_messages_errors_have_anthropic_shape(client: aiohttp.ClientSession) -> None:
    body = {"messages": HELLO, "model": "other", "max_tokens": 5}
    answer = await whole(client, "/v1/messages", body, status=404)
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "NotFoundError"


async def test_bodies_that_are_not_json_objects_are_refused(client: aiohttp.ClientSession) -> None:
    for raw in (b"{", b"[]", b""):
        json_type = {"content-type": "application/json"}
        async with client.post(CHAT, data=raw, headers=json_type) as response:
            assert response.status == 400
    async with client.post(CHAT, data=b"{}", headers={"content-type": "text/plain"}) as response:
        assert "Unsupported Media Type" in (await response.json())["error"]["message"]


async def test_the_api_key_guards_only_v1() -> None:
    server = await SimServer(profile="instant", api_key="k").start()
    async with aiohttp.ClientSession(server.url) as client:
        answer = await whole(client, CHAT, {"messages": HELLO}, status=401)
        assert answer == {"error": "Unauthorized"}
        assert (await whole(client, "/tokenize", {"prompt": "abc"}))["count"] == 1
        bearer = {"authorization": "Bearer k"}
        async with client.post(CHAT, json={"messages": HELLO}, headers=bearer) as response:
            assert response.status == 200
    await server.stop()


async def test_forced_usage_acts_as_if_both_options_were_asked_for() -> None:
    server = await SimServer(profile="instant", force_usage=True).start()
    async with aiohttp.ClientSession(server.url) as client:
        *chunks, _ = await events(client, CHAT, {"messages": HELLO, "max_tokens": 2})
    await server.stop()
    assert all("usage" in data(chunk) for chunk in chunks)
    assert data(chunks[-1])["choices"] == []
