"""What routing reads of a body, and what it leaves to the backend."""

import base64

import orjson
import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.media import MEDIA_PARTS_MAX
from penstock.balancing.outline import LARGE_BYTES
from penstock.balancing.output_length import OutputLength
from penstock.balancing.reader import COUNT_MAX, GENERATION, PROMPTS_MAX, Reader
from penstock.balancing.tokens import MEDIA_PART_TOKENS, NOTHING, TokenEstimator

JSON = [(b"content-type", b"application/json")]


def ask(body: bytes, path: str = "/v1/chat/completions") -> Ask:
    return Reader(TokenEstimator()).read(path, JSON, body, GENERATION)


def test_a_chat() -> None:
    seen = ask(
        b'{"model":"m","stream":true,"n":2,"max_tokens":50,'
        b'"messages":[{"role":"user","content":"hello"}]}'
    )
    assert (seen.model, seen.stream, seen.choices, seen.max_tokens) == ("m", True, 2, 50)
    assert seen.prompt_tokens == pytest.approx(13, abs=4)


@pytest.mark.parametrize(
    ("tier", "seen"), [(b'"flex"', "flex"), (b"null", None), (b'"\\u0066lex"', "flex")]
)
def test_a_service_tier_is_text_or_none(tier: bytes, seen: str | None) -> None:
    assert ask(b'{"model":"m","service_tier":%b}' % tier).service_tier == seen
    assert ask(b'{"model":"m"}').service_tier is None
    for odd in (b"3", b'["flex"]'):
        with pytest.raises(MalformedAsk, match="service_tier"):
            ask(b'{"model":"m","service_tier":%b}' % odd)


@pytest.mark.parametrize(
    ("prompt", "prompts", "tokens"),
    [
        (b'"text"', 1, None),
        (b'["one","two","three"]', 3, None),
        (b"[1,2,3,4]", 1, 4),
        (b"[[1,2],[3,4,5]]", 2, 5),
        (b"[ [ 1 , 2 ] , [ 3 ] ]", 2, 3),
        (b'[ "a, b" , "[c]" ]', 2, None),
        (b"[]", 1, None),
        (b'{"odd":1}', 1, None),
        (b'[%b"one","two"]' % (b" " * 5_000), 2, None),
        (b"[%b[1,2],[3]]" % (b"\n" * 5_000), 2, 3),
        (b"[[%b1,2],[3]]" % (b"\t" * 50_000), 2, 3),
        (b'[["1","2"],["3"]]', 2, None),
        (b"null", 1, None),
    ],
)
def test_prompts(prompt: bytes, prompts: int, tokens: int | None) -> None:
    seen = ask(b'{"prompt":%b}' % prompt, "/v1/completions")
    assert seen.prompts == prompts
    if tokens:
        assert seen.prompt_tokens == tokens
        assert seen.measured == NOTHING  # exact: nothing to learn from


@pytest.mark.parametrize(
    "body",
    [
        *(b"[]", b'"text"', b"null", b"12", b"{", b'{"model":"m"} trailing', b'{"model":"m",}'),
        *(b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000),
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedAsk, match="JSON object"):
        ask(body)


@pytest.mark.parametrize("model", [b"1", b"[]", b"{}", b"true"])
def test_a_model_must_be_a_string(model: bytes) -> None:
    with pytest.raises(MalformedAsk, match="model"):
        ask(b'{"model":%b}' % model)


def test_odd_types_of_what_decides_nothing_are_the_backends_to_judge() -> None:
    seen = ask(b'{"model":null,"user":7,"max_tokens":-5,"messages":7,"temperature":"x","top_k":[]}')
    assert (seen.model, seen.choices, seen.max_tokens) == (None, 1, None)
    assert ask(b'{"model":""}').model is None


@pytest.mark.parametrize("odd", [b"1", b"1.0", b"1e0", b'"on"', b'"True"', b'"maybe"', b"[]"])
def test_a_stream_is_true_or_false(odd: bytes) -> None:
    assert ask(b'{"stream":true}').stream
    assert not ask(b'{"stream":null}').stream
    with pytest.raises(MalformedAsk, match="`stream` must be true or false"):
        ask(b'{"stream":%b}' % odd)


@pytest.mark.parametrize(
    "odd", [b'"r.1"', b'"%b"' % (b"r" * 129), b'""', b"7", b'"%b"' % (b"r" * 9_000)]
)
def test_an_id_of_a_response_is_one_that_the_paths_take(odd: bytes) -> None:
    """Nobody remembers another one, so the conversation before it would count for nothing."""
    body = b'{"input":"x","previous_response_id":%b}'
    assert ask(body % b'"resp_1"', "/v1/responses").response_id == "resp_1"
    assert ask(body % b"null", "/v1/responses").response_id is None
    assert ask(body % odd).response_id is None  # a chat has no such member
    with pytest.raises(MalformedAsk, match="previous_response_id"):
        ask(body % odd, "/v1/responses")


def test_embeddings_are_prompts() -> None:
    three = b'{"prompt_embeds":["QUJD","QUJD","QUJD"],"prompt":%b}'
    assert ask(three % b"null", "/v1/completions").prompts == 3
    assert ask(three % b'["a","b"]', "/v1/completions").prompts == 5
    assert ask(b'{"prompt_embeds":"QUJD"}', "/v1/completions").prompts == 1


@pytest.mark.parametrize("padding", [b"", b" " * 10_000, b'"x":"%b",' % (b"x" * 10_000)])
def test_sampling_params_of_any_size_are_read(padding: bytes) -> None:
    body = b'{"token_ids":[1],"sampling_params":{%b"n":64,"max_tokens":9}}' % padding
    seen = ask(body, "/inference/v1/generate")
    assert (seen.choices, seen.max_tokens) == (64, 9)


@pytest.mark.parametrize("odd", [b"[]", b"null", b'{"x":"%b"}' % (b"x" * 70_000)])
def test_sampling_params_that_cannot_be_read_are_refused(odd: bytes) -> None:
    with pytest.raises(MalformedAsk, match="sampling_params"):
        ask(b'{"token_ids":[1],"sampling_params":%b}' % odd, "/inference/v1/generate")


BASE64 = b"QUJD" * 50_000
PARTS = {
    "chat image": b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}' % BASE64,
    "escaped slashes": rb'{"type":"image_url","image_url":{"url":"data:image\/png;base64,%b"}}'
    % BASE64,
    "remote image": b'{"type": "image_url", "image_url": {"url": "https://h/1.png"}}',
    "chat audio": b'{"type":"input_audio","input_audio":{"data":"%b","format":"wav"}}' % BASE64,
    "responses image": b'{"type":"input_image","image_url":"data:image/png;base64,%b"}' % BASE64,
    "messages image": b'{"type":"image","source":{"type":"base64","media_type":"image/png",'
    b'"data": "%b"}}' % BASE64,
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_media_is_no_text(part: bytes) -> None:
    seen = ask(b'{"messages":[{"role":"user","content":[%b,%b]}]}' % (part, part))
    assert seen.media_parts == 2
    assert 2 * MEDIA_PART_TOKENS <= seen.prompt_tokens < 2 * MEDIA_PART_TOKENS + 150


def test_text_that_speaks_of_media_is_text() -> None:
    said = b'{"type":"text","text":%b}' % orjson.dumps(PARTS["chat image"].decode())
    seen = ask(b'{"messages":[{"role":"user","content":[%b]}]}' % said)
    assert seen.media_parts == 0
    beside = ask(b'{"messages":[{"role":"user","content":[%b,%b]}]}' % (said, PARTS["chat image"]))
    assert beside.media_parts == 1
    assert beside.measured[0] > seen.measured[0] > 10_000


def test_what_only_looks_like_media_claims_little() -> None:
    named = b",".join([b'{"type":"image"}'] * 5_000)
    seen = ask(b'{"messages":[{"role":"user","content":"hi","x":[%b]}]}' % named)
    assert seen.media_parts == MEDIA_PARTS_MAX
    assert seen.prompt_tokens < (MEDIA_PARTS_MAX + 100) * MEDIA_PART_TOKENS


@pytest.mark.parametrize(
    ("body", "tokens", "prompts"),
    [
        (b'{"input":[1,2,3]}', 3, 1),
        (b'{"input":[[1,2,3],[4]]}', 4, 2),
        (b'{"input":"some words that are cut","truncate_prompt_tokens":2}', 2, 1),
        (b'{"input":["some words are cut","each"],"truncate_prompt_tokens":1}', 2, 2),
    ],
)
def test_tokens_that_are_known_teach_nothing(body: bytes, tokens: int, prompts: int) -> None:
    asked = ask(body, "/v1/embeddings")
    assert (asked.prompt_tokens, asked.prompts, asked.measured) == (tokens, prompts, NOTHING)
    kept = ask(b'{"input":"and then?","previous_response_id":"resp_1"}', "/v1/responses")
    assert kept.measured == NOTHING  # the backend has the history before it
    assert kept.prompt_tokens > 1


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_what_an_api_does_not_know_cuts_no_prompt(path: str) -> None:
    text = orjson.dumps("word " * 1_000)
    body = b'{"truncate_prompt_tokens":1,"input":%b,"messages":[{"content":%b}]}' % (text, text)
    assert ask(body, path).prompt_tokens > 500


def test_what_is_learnt_is_of_the_address_where_there_are_no_tenants() -> None:
    estimator, outputs = TokenEstimator(), OutputLength()
    reader = Reader(estimator, outputs=outputs)
    body = b'{"prompt":%b}' % orjson.dumps("word " * 1_000)
    first = reader.read("/v1/completions", (), body, GENERATION, client="a")
    for _ in range(40):
        estimator.observe(None, first.measured, first.prompt_tokens, tenant=first.client)
    for _ in range(200):
        estimator.observe(None, first.measured, 10, tenant="b")
        outputs.observe("b", None, "/v1/completions", None, 1.0)
    seen = reader.read("/v1/completions", (), body, GENERATION, client="a")
    assert seen.prompt_tokens == pytest.approx(first.prompt_tokens, rel=0.05)
    assert seen.client == "a"


@pytest.mark.parametrize("item", [b"1", b'""', b"[1]"])
def test_millions_of_prompts_are_not_millions_of_objects(item: bytes) -> None:
    body = b'{"prompt":[%b]}' % b",".join([item] * 1_000_000)
    if item == b"1":
        assert ask(body, "/v1/completions").prompts == 1
    else:
        with pytest.raises(MalformedAsk, match="at most 16,384 prompts"):
            ask(body, "/v1/completions")


@pytest.mark.parametrize(
    ("path", "fields", "reads"),
    [
        ("/v1/completions", {}, True),
        ("/v1/completions", {"prompt_logprobs": None}, True),
        ("/v1/completions", {"prompt_logprobs": 0}, False),
        ("/v1/chat/completions", {"prompt_logprobs": 5}, False),
        ("/v1/completions", {"echo": True}, True),
        ("/v1/completions", {"echo": False, "logprobs": 3}, True),
        ("/v1/completions", {"echo": True, "logprobs": 0}, False),
        ("/v1/messages", {"echo": True, "prompt_logprobs": 3}, True),
        ("/v1/chat/completions", {"echo": True, "logprobs": True}, True),
        ("/v1/chat/completions", {"echo": True, "logprobs": True, "top_logprobs": 2}, False),
    ],
)
def test_probabilities_of_a_prompt_are_in_no_cache(
    path: str, fields: dict[str, object], reads: bool
) -> None:
    assert read(path, prompt="x", messages=[], **fields).reads_cache is reads


# Numbers -----------------------------------------------------------------------------------


def number_in(member: str, path: str = "/v1/completions") -> Ask:
    return ask(b'{"prompt":"x",%b}' % member.encode(), path)


@pytest.mark.parametrize(("text", "number"), [("16", 16), ("16.0", 16), ("4e3", 4_000)])
def test_a_whole_number(text: str, number: int) -> None:
    assert number_in(f'"n":{text}').choices == number
    assert number_in(f'"max_tokens":{text}').max_tokens == number
    chat = f'"max_tokens":1,"max_completion_tokens":{text}'
    assert number_in(chat, "/v1/chat/completions").max_tokens == number


ODD = ["true", "false", '"16"', '" 16 "', '"1_000"', '"' + " " * 2_000 + '16"', '"x"']


@pytest.mark.parametrize("text", [*ODD, "16.5", "[16]", "{}", "1e400", "1" * 5_000])
def test_no_whole_number(text: str) -> None:
    for name in ("n", "max_tokens", "truncate_prompt_tokens"):
        with pytest.raises(MalformedAsk, match=f"^`{name}` must be a whole number"):
            number_in(f'"{name}":{text}')
        number_in(f'"{name}":{text}', "/v1/responses")  # where nobody reads it


@pytest.mark.parametrize("text", ["null", "-3", "0", "-0.0"])
def test_numbers_that_mean_none_or_that_backends_refuse(text: str) -> None:
    assert number_in(f'"n":{text}').choices == 1
    assert number_in(f'"max_tokens":{text}').max_tokens is None


def test_numbers_beyond_reason() -> None:
    """More tokens than any context has size timeouts, so they must neither overflow nor switch one
    off. More choices than any engine makes are refused."""
    assert number_in(f'"max_tokens":{10**15}').max_tokens == COUNT_MAX
    assert number_in(f'"max_tokens":{10**30}').max_tokens == COUNT_MAX
    assert number_in(f'"n":{PROMPTS_MAX}').choices == PROMPTS_MAX
    for text in (f"{PROMPTS_MAX + 1}", "1e9"):
        with pytest.raises(MalformedAsk, match="`n` may be at most 16,384"):
            number_in(f'"n":{text}')


# Prompts that are no text ------------------------------------------------------------------

GENERATE = "/inference/v1/generate"


def read(path: str, **members: object) -> Ask:
    reader = Reader(TokenEstimator(), prefixes=True, caps=True)
    return reader.read(path, [], orjson.dumps({"model": "m"} | members), GENERATION)


@pytest.mark.parametrize("count", [1, 700, LARGE_BYTES])
def test_token_ids_are_counted(count: int) -> None:
    params = {"max_tokens": 9, "n": 3, "temperature": 0.5}
    seen = read(GENERATE, token_ids=[5] * count, sampling_params=params, stream=True)
    assert (seen.prompt_tokens, seen.prompts, seen.choices) == (count, 1, 3)
    assert (seen.model, seen.max_tokens, seen.stream) == ("m", 9, True)
    assert seen.measured == NOTHING
    assert seen.uncut
    assert seen.usage_options == b'{"include_usage":true}'


def test_token_ids_with_one_beginning_share_a_cache() -> None:
    first, other = (read(GENERATE, token_ids=[*range(2_000), last]) for last in (7, 8))
    assert first.blocks[:-1] == other.blocks[:-1]
    assert first.blocks


@pytest.mark.parametrize("params", [{}, {"max_tokens": None, "n": None}, {"temperature": "x"}])
def test_sampling_parameters_without_a_limit(params: object) -> None:
    seen = read(GENERATE, token_ids=[1, 2], sampling_params=params)
    assert (seen.max_tokens, seen.choices) == (None, 1)


def test_limits_at_the_top_mean_nothing_there() -> None:
    seen = read(GENERATE, token_ids=[1, 2, 3, 4], max_tokens=5, truncate_prompt_tokens=1)
    assert (seen.max_tokens, seen.prompt_tokens) == (None, 4)


@pytest.mark.parametrize("tokens", [1, 400, 5_000])
def test_embeddings_count_by_their_size_and_are_never_too_long(tokens: int) -> None:
    """4,096 values of two bytes each for a token."""
    embeds = base64.b64encode(bytes(tokens * 8_192)).decode()
    seen = read("/v1/completions", prompt_embeds=embeds, max_tokens=5)
    assert seen.prompt_tokens == pytest.approx(tokens, rel=0.01, abs=1)
    assert not seen.uncut
    assert seen.measured == NOTHING
    with_text = read("/v1/completions", prompt_embeds=[embeds], prompt="word " * 400)
    assert tokens + 300 < with_text.prompt_tokens < tokens + 800


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_other_paths_read_no_embeddings(path: str) -> None:
    members = {"messages": [], "input": "x"}
    known = read(path, **members)
    other = read(path, prompt_embeds="A" * 100_000, **members)
    assert (other.prompt_tokens, other.uncut) == (known.prompt_tokens, known.uncut)


@pytest.mark.parametrize("given", [None, "", []])
def test_no_embeddings(given: object) -> None:
    text = read("/v1/completions", prompt="word " * 400)
    seen = read("/v1/completions", prompt="word " * 400, prompt_embeds=given)
    assert seen.prompt_tokens == text.prompt_tokens
    assert seen.uncut
