"""A member that decides a charge, a limit or a route is read as the path's API reads it, or the
request is refused: bodies of all APIs with odd values, read here and by models such as vLLM's.
"""

import json
import sys
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from penstock.balancing.ask import Ask
from penstock.balancing.body_edits import cap_edits
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.outline import LARGE_BYTES
from penstock.balancing.reader import COUNT_MAX, Reader
from penstock.balancing.tokens import TokenEstimator
from penstock.proxy.data.endpoints import Paths
from penstock.proxy.wire.edit import parts_of, splices
from tests.unit.proxy.data.request_models import (
    APIS,
    Chat,
    Completion,
    Generate,
    Model,
    Response,
    choices_of,
    prompts_of,
    tokens_of,
)

CAP = 512
NUMBERS = [
    "null", "1", "64", "64.0", "6.4e1", "64e0", "4096", "1.0", "0", "-0", "-1", "1.5", "true",
    "false", "1e3", "16385", "200000", "1e400", "-1e400", "99999999999999999999", "1e30", "[]",
    "[64]", "{}", '"64"', '"0000000000000000064"', '"6_4"', '"+64"', '"64.0"', '"0_0_0_4_0_0_0"',
    '""', '"x"', '"1e3"', '"true"', '" 64 "', "9" * 400, "9" * 9_000,
]  # fmt: skip
TRUTHS = [
    "null", "true", "false", "1", "0", "1.0", "0.0", "1e0", "0e0", "10e-1", "2", "-1", '"1"', '"0"',
    '"true"', '"True"', '"TRUE"', '"t"', '"yes"', '"y"', '"on"', '"false"', '"no"', '"off"', '""',
    '"x"', "[]", "{}", "[true]",
]  # fmt: skip
TEXTS = ["null", '"m"', '""', '"\\u006d"', "1", "true", "[]", "{}", '["m"]']
USAGE = ["null", "{}", "[]", "1", '"x"', "true"] + [
    f'{{"{name}":{value}}}'
    for name in ("include_usage", "continuous_usage_stats")
    for value in TRUTHS
]
NUMBERED = [
    "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "min_tokens",
    "truncate_prompt_tokens", "prompt_logprobs",
]  # fmt: skip
BLANKS = " " * 5_000
LISTS = [
    "null",
    '""',
    "[]",
    "1",
    "{}",
    "[1,2,3]",
    "[[1,2],[3],[4]]",
    '["a","b","c"]',
    '["1","2"]',
    "[1.0,2.0]",
    "[true,true]",
    '[["1","2"],["3"]]',
    f'[{BLANKS}"a","b","c"]',
    f"[{BLANKS}[1,2],[3]]",
    f"[[{BLANKS}1,2],[3]]",
    *[f"[{','.join([each] * 3_000)}]" for each in ("7", "[7]", '"a"', '"YWFh"')],
]


def member(name: str, value: str) -> str:
    """A member, at the top or in `sampling_params`."""
    return f'"{name}":{value}'


def bodies(path: str) -> Iterator[str]:
    """The plain body with one odd member more, or in place of its own."""
    plain = APIS[path][1]
    own = {str(name) for name in json.loads("{" + plain + "}")}
    named = [(name, value) for name in NUMBERED for value in NUMBERS]
    named += [(name, value) for name in ("stream", "background", "echo") for value in TRUTHS]
    named += [("stream_options", value) for value in USAGE]
    named += [(name, value) for name in ("model", "service_tier") for value in TEXTS]
    lists = ("prompt", "input", "prompt_embeds", "token_ids", "messages")
    named += [(name, value) for name in lists for value in LISTS if path not in _LISTED]
    named += [(_LISTED[path], value) for value in LISTS if path in _LISTED]
    for name, value in named:
        if name not in own:
            yield "{" + plain + "," + member(name, value) + "}"
        else:
            kept = {key: each for key, each in json.loads("{" + plain + "}").items() if key != name}
            rest = json.dumps(kept)[1:-1]
            yield "{" + rest + "," * bool(rest) + member(name, value) + "}"
    for name in ("n", "max_tokens"):
        for value in NUMBERS:
            yield "{" + plain.replace('{"max_tokens":4096}', f'{{"{name}":{value}}}') + "}"
    for value in USAGE:
        yield "{" + plain + ',"stream":true,"stream_options":' + value + "}"
    for one in ("64", '"64"', "null", "0"):
        for other in ("1", "4096", '"4096"', "null", "true"):
            yield "{" + plain + f',"max_completion_tokens":{one},"n":{other}' + "}"


_LISTED = {"/v2/embed": "texts", "/rerank": "documents", "/generative_scoring": "items"}


def asked(path: str, body: str) -> Ask | None:
    """What is read here. None: the request is refused."""
    endpoint = Paths().find(b"POST", path.encode())
    assert endpoint is not None
    try:
        return Reader(TokenEstimator(1), caps=True).read(path, [], body.encode(), endpoint.work)
    except MalformedAsk:
        return None


def read(path: str, body: str) -> Model | None:
    """What a model such as vLLM's reads. None: it refuses."""
    try:
        return APIS[path][0].model_validate(json.loads(body))
    except (ValidationError, ValueError):
        return None


def differences(path: str, body: str, ask: Ask, seen: Model) -> Iterator[str]:
    """In what the two readings differ, and whom that would help."""
    tokens = tokens_of(seen)
    if tokens is not None and tokens > 0 and (ask.max_tokens or COUNT_MAX) < min(tokens, COUNT_MAX):
        yield f"max_tokens {ask.max_tokens} for {tokens}"
    if tokens is None and ask.max_tokens is not None:
        yield f"max_tokens {ask.max_tokens} for none"
    if ask.choices < choices_of(seen):
        yield f"{ask.choices} choices for {choices_of(seen)}"
    if ask.prompts < prompts_of(seen):
        yield f"{ask.prompts} prompts for {prompts_of(seen)}"
    if ask.background is not (isinstance(seen, Response) and bool(seen.background)):
        yield f"background {ask.background}"
    yield from of_streams(path, ask, seen)
    cut = getattr(seen, "truncate_prompt_tokens", None)
    # Of a long text a sample is measured, which may well miss two words.
    if cut is None and BLANKS not in body and ask.prompt_tokens < words_in(body):
        yield f"{ask.prompt_tokens} tokens for {words_in(body)}"
    model = getattr(seen, "model", None) or None
    if ask.model != model:
        yield f"model {ask.model} for {model}"


def of_streams(path: str, ask: Ask, seen: Model) -> Iterator[str]:
    """The same for whether it streams, and whether its backend tells the usage then."""
    endpoint = Paths().find(b"POST", path.encode())
    assert endpoint is not None
    streams = endpoint.work.streams and bool(getattr(seen, "stream", False))
    if ask.stream is not streams:
        yield f"stream {ask.stream}"
    if streams and isinstance(seen, (Chat, Completion, Generate)):
        told = seen.stream_options is not None and bool(seen.stream_options.include_usage)
        if not told and not ask.usage_options:
            yield "usage is not asked for"


def words_in(body: str) -> int:
    """The least that the prompt of the plain body may be read as, if it is still there."""
    return 2 if "a river" in body else 1


def longest(path: str, body: str, ask: Ask) -> int | None:
    """The most tokens of an answer after a cap, as the API reads the edited body. None: refused."""
    assert ask.answer_limits is not None
    edits = cap_edits(path, ask.answer_limits, CAP)
    sent = body.encode()
    sent = b"".join(parts_of(sent, splices(sent, edits, ask.places)))
    seen = read(path, sent.decode())
    if seen is None:
        return None
    tokens = tokens_of(seen)
    least = seen.min_tokens if isinstance(seen, (Chat, Completion)) else 0
    return max(least, sys.maxsize if tokens is None else tokens)


@pytest.mark.parametrize("path", APIS)
def test_no_odd_value_lowers_a_charge(path: str) -> None:
    found, number, refused = [], 0, 0
    for body in bodies(path):
        number += 1
        ask, seen = asked(path, body), read(path, body)
        refused += ask is None
        if ask is not None and seen is not None:
            found += [(each, body[-200:]) for each in differences(path, body, ask, seen)]
    assert found == []
    assert number >= 300
    assert refused < number


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"],
)
def test_no_odd_value_gets_round_a_cap(path: str) -> None:
    found = []
    for body in bodies(path):
        ask = asked(path, body)
        tokens = longest(path, body, ask) if ask is not None else None
        if tokens is not None and tokens > CAP:
            found.append((tokens, body[-200:]))
    assert found == []


PLAIN = [
    ("/v1/chat/completions", '"max_tokens":64,"n":2,"stream":true'),
    ("/v1/chat/completions", '"max_completion_tokens":64,"max_tokens":null,"temperature":"0.5"'),
    ("/v1/chat/completions", '"max_tokens":16.0,"n":1.0,"min_tokens":4,"user":7,"top_k":"x"'),
    ("/v1/chat/completions", '"max_tokens":4e3,"stream":false,"stream_options":null'),
    ("/v1/chat/completions", '"stream":true,"stream_options":{"include_usage":true}'),
    ("/v1/chat/completions", '"max_output_tokens":"x","background":"yes","use_beam_search":false'),
    ("/v1/completions", '"max_tokens":64,"echo":true,"logprobs":1,"n":4,"best_of":"x"'),
    ("/v1/responses", '"max_output_tokens":64,"background":true,"store":true,"max_tokens":"x"'),
    ("/v1/responses", '"stream":true,"stream_options":{"include_obfuscation":false},"n":"x"'),
    ("/v1/messages", '"stream":true,"stop_sequences":["x"],"n":"x","stream_options":1'),
    ("/v1/embeddings", '"encoding_format":"base64","dimensions":64,"n":"x","max_tokens":"x"'),
    ("/rerank", '"top_n":2,"return_documents":true,"n":"x","stream":"x"'),
]


@pytest.mark.parametrize(("path", "members"), PLAIN)
def test_plain_bodies_are_taken_and_what_decides_nothing_is_not_judged(
    path: str, members: str
) -> None:
    assert asked(path, "{" + APIS[path][1] + "," + members + "}") is not None


@pytest.mark.parametrize(
    ("path", "members", "said"),
    [
        ("/v1/chat/completions", '"n":"64"', "`n` must be a whole number"),
        ("/v1/chat/completions", '"n":16385', "`n` may be at most 16,384"),
        ("/v1/chat/completions", '"max_tokens":"0_0_4"', "`max_tokens` must be a whole number"),
        ("/v1/chat/completions", '"stream":"yes"', "`stream` must be true or false"),
        ("/v1/responses", '"background":1e0', "`background` must be true or false"),
        ("/v1/responses", '"previous_response_id":7', "`previous_response_id` must be a string"),
        ("/v1/chat/completions", '"stream":true,"stream_options":7', "`stream_options` must be"),
    ],
)
def test_the_error_names_the_member_and_what_is_taken(path: str, members: str, said: str) -> None:
    endpoint = Paths().find(b"POST", path.encode())
    assert endpoint is not None
    body = ("{" + APIS[path][1] + "," + members + "}").encode()
    for padding in (b"", b" " * LARGE_BYTES):
        with pytest.raises(MalformedAsk) as caught:
            Reader(TokenEstimator(1)).read(path, [], body + padding, endpoint.work)
        assert said in str(caught.value)
