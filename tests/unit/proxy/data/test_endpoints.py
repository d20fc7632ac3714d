"""The allow-list: what is served, and how."""

import pytest

from penstock.balancing.forms import MalformedAsk
from penstock.balancing.outline import finished
from penstock.conf.kinds import _SERVED, is_served
from penstock.proxy.data.endpoints import _POST, LOCAL_PATHS, WEBSOCKET_PATHS, Paths
from penstock.proxy.data.reading import ADAPTER, adapter_of, invoked_path
from penstock.proxy.dialects import POOLING, Dialect
from penstock.proxy.dialects.dialect import Usage, whole_of


@pytest.mark.parametrize(
    ("path", "dialect", "generates"),
    [
        (b"/v1/chat/completions/batch", "chat", True),
        (b"/v2/embed", "embed", False),
        (b"/invocations", "pooling", False),
        (b"/generative_scoring", "pooling", False),
    ],
)
def test_inference_paths(path: bytes, dialect: str, generates: bool) -> None:
    endpoint = Paths().find(b"POST", path)
    assert endpoint is not None
    assert (endpoint.dialect.name, endpoint.work.generates, endpoint.work.engine) == (
        dialect,
        generates,
        True,
    )
    assert Paths().find(b"GET", path) is None


def test_the_paths_that_cannot_be_added_are_those_of_the_table() -> None:
    served = {*_POST, *LOCAL_PATHS, *WEBSOCKET_PATHS, b"/v1/responses/resp_1", b"/v1/models/m"}
    assert all(is_served(path.decode()) for path in served)
    assert served >= {path.encode() for path in _SERVED}


def test_an_added_path_is_advised_to_nobody() -> None:
    paths = Paths(["GET /tokenizer_info", "POST /v1/systemone"])
    for path in (b"/v1/tokenizer_info", b"//tokenizer_info", b"/v1/v1/systemone", b"/systemone"):
        assert not paths.hint(path)
    assert paths.hint(b"/v1/v1/messages")


@pytest.mark.parametrize("path", [b"/version", b"/load", b"/tokenizer_info", b"/ping"])
def test_what_an_api_server_tells_of_itself_is_asked_for(path: bytes) -> None:
    assert Paths().find(b"GET", path) is None
    assert Paths(["GET " + path.decode()]).find(b"GET", path) is not None


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"messages":[]}', b"/v1/chat/completions"),
        (b'{"messages":[],"documents":[],"prompt":null}', b"/v1/chat/completions"),
        (b'{"prompt_embeds":"QUJD"}', b"/v1/completions"),
        (b'{"prompt":"a","messages":null}', b"/v1/completions"),
        (b'{"prompt":[1,2]}', b"/v1/completions"),
        (b'{"input":"a"}', b"/pooling"),
        (b'{"query":"a","documents":["b"]}', b"/score"),
        (b'{"text_1":"a","text_2":["b"]}', b"/score"),
        (b'{"prompt":null}', b"/pooling"),
        (b"", b"/pooling"),
        (b"[]", b"/pooling"),
        (b"\xff", b"/pooling"),
        (b"[" * 100_000, b"/pooling"),
    ],
)
def test_whose_body_is_invoked(body: bytes, path: bytes) -> None:
    assert finished(invoked_path(body)) == path


@pytest.mark.parametrize("one", ["messages", "prompt", "prompt_embeds", "input", "query"])
@pytest.mark.parametrize("other", ["messages", "prompt", "input", "query", "queries", "text_1"])
def test_a_body_for_two_apis_is_refused(one: str, other: str) -> None:
    """Whatever is in them: vLLM takes the second API if it cannot read the first."""
    kinds = {"prompt_embeds": "prompt", "queries": "query", "text_1": "query"}
    body = b'{"%b":5,"%b":["b"]}' % (one.encode(), other.encode())
    if kinds.get(one, one) == kinds.get(other, other):
        finished(invoked_path(body))
        return
    with pytest.raises(MalformedAsk, match="Give one of"):
        finished(invoked_path(body))


def test_the_head_names_one_adapter() -> None:
    """vLLM takes the first of two, other servers the last."""
    assert adapter_of([(b"host", b"x")]) is None
    assert adapter_of([(ADAPTER, b"")]) is None
    assert adapter_of([(ADAPTER, b"sql")]) == "sql"
    for second in (b"other", b"sql", b""):
        with pytest.raises(MalformedAsk, match="once"):
            adapter_of([(ADAPTER, b"sql"), (ADAPTER, second)])


def test_embed_tells_its_tokens_as_units() -> None:
    endpoint = Paths().find(b"POST", b"/v2/embed")
    assert endpoint is not None
    units = b'{"id":"embd-1","meta":{"api_version":{"version":"2"},"billed_units":%b}}'

    def told(dialect: Dialect, body: bytes) -> Usage | None:
        whole = whole_of(body)
        assert whole is not None
        return dialect.usage(whole)

    embed = endpoint.dialect
    assert told(embed, units % b'{"input_tokens":9,"image_tokens":3}') == Usage(12, 0)
    for odd in (b"null", b"{}", b'{"input_tokens":-1}', b'{"input_tokens":"9"}', b"9"):
        assert told(embed, units % odd) is None
    assert told(embed, b'{"usage":{"prompt_tokens":4}}') is None
    # What only embed tells so is nothing elsewhere.
    assert told(POOLING, units % b'{"input_tokens":9}') is None


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (b"/chat/completions", "Did you mean /v1/chat/completions?"),
        (b"/models", "Did you mean /v1/models?"),
        (b"/responses/resp_1", "Did you mean /v1/responses/resp_1?"),
        (b"/models/meta/llama", "Did you mean /v1/models/meta/llama?"),
        (b"//v1/chat/completions", "Did you mean /v1/chat/completions?"),
        (b"/v1//chat/completions", "Did you mean /v1/chat/completions?"),
        (b"/v1/v1/messages", "Did you mean /v1/messages?"),
        (b"/v1/chat/completions/", "Did you mean /v1/chat/completions?"),
        (b"/openai/v1/embeddings", "Did you mean /v1/embeddings?"),
        (b"/openai/embeddings", "Did you mean /v1/embeddings?"),
        (b"/v1/health/", "Did you mean /health?"),
        (b"/v1" * 2_000 + b"/messages", ""),
        (b"/" * 4_000, ""),
        (b"/realtime", ""),
        (b"/sleep", ""),
        (b"/v1/load_lora_adapter", ""),
    ],
)
def test_a_path_that_is_not_served_tells_what_was_meant(path: bytes, hint: str) -> None:
    said = Paths().hint(path)
    assert said.startswith(hint)
    assert bool(said) is bool(hint)


def test_a_hint_names_the_prefix_that_is_missing() -> None:
    paths = Paths(prefix="/llm")
    for path in (b"/v1/messages", b"/llm/v1/v1/messages"):
        assert paths.hint(path).startswith("Did you mean /llm/v1/messages?")


def test_what_may_be_a_stream_by_its_path() -> None:
    """It has an end of its own."""
    streams = {
        path: endpoint.work.streams
        for path, endpoint in _POST.items()
        if endpoint.dialect.has_end or not endpoint.work.streams
    }
    assert set(streams) == set(_POST)
    for path in ("chat/completions", "completions", "responses", "messages"):
        assert streams[b"/v1/" + path.encode()]
    assert streams[b"/v1/audio/transcriptions"]
    assert streams[b"/v1/audio/translations"]
    for path in ("v1/embeddings", "v1/chat/completions/batch", "generative_scoring", "tokenize"):
        assert not streams[b"/" + path.encode()]
