"""No body leaves with two members of one name, and none that came with two is passed on."""

import json
from random import Random
from typing import Any

import pytest

from tests.unit.proxy.data.playbook import REFUSED, Play, pool, post, text

CHANGES = {"body": {"max_tokens_at_most": 50, "defaults": {"temperature": 0.5, "seed": 7}}}
POOLS = [pool(name, n) for n, name in ((1, "first"), (2, "next"), (3, "copies"))]
ROUTE: dict[str, Any] = {
    "name": "alias",
    "match": {"model": "gpt-4o"},
    "to": [{"pool": "first", "model": "qwen"}],
    "fallbacks": [{"pool": "next", "model": "llama", "on": ["errors", "no_backend"]}],
    "mirror": {"pool": "copies", "model": "new", "share": 1.0},
    "set": CHANGES,
}
LARGE = 600_000  # more than is read or written at once


def single(body: bytes) -> dict[str, Any]:
    """The body, which has no name twice at any depth."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(pairs) == len(dict(pairs)), [name for name, _ in pairs]
        return dict(pairs)

    found = json.loads(body, object_pairs_hook=members)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def play() -> Play:
    return Play(pools=POOLS, routes=[ROUTE])


def sends(play: Play, body: bytes, path: str = "/v1/chat/completions") -> None:
    play.client.sends(post(path, body))
    play.passes(0.5)


def written(pairs: list[tuple[str, Any]], rng: Random) -> bytes:
    """These members as some client writes them."""
    blank = rng.choice(["", " ", "\r\n\t", " " * 70])
    names = [json.dumps(name) for name, _ in pairs]
    if rng.random() < 0.3:
        names = [f'"{"".join(f"{chr(92)}u{ord(c):04x}" for c in name)}"' for name, _ in pairs]
    ascii_ = rng.random() < 0.5
    values = [json.dumps(value, ensure_ascii=ascii_) for _, value in pairs]
    members = [f"{n}{blank}:{blank}{v}" for n, v in zip(names, values, strict=True)]
    return f"{blank}{{{blank}{f'{blank},{blank}'.join(members)}{blank}}}{blank}".encode()


def body_of(rng: Random) -> list[tuple[str, Any]]:
    """A chat with some of the members that penstock edits, in any order."""
    size = rng.choice([1, 1, 5_000, 70_000, LARGE])
    tools = [{"model": "no", "stream_options": None}, 'é"]}{,:\\' * 3]
    messages = [{"role": "user", "content": 'say "model": x' + "x" * size}, tools]
    pairs: list[tuple[str, Any]] = [("model", "gpt-4o"), ("messages", messages)]
    pairs += [("stream", rng.random() < 0.8)]
    for name, values in (
        ("stream_options", [None, {}, {"include_usage": False}, {"include_usage": True}]),
        ("max_tokens", [None, 7, 5_000, 10**30]),
        ("max_completion_tokens", [None, 7, 5_000]),
        ("temperature", [None, 0.9]),
        ("store", [None, True]),
        ("seed", [None, 1]),
        ("other", [None, {"model": 1}]),
    ):
        if rng.random() < 0.5:
            pairs.append((name, rng.choice(values)))
    rng.shuffle(pairs)
    return pairs


def wanted(pairs: list[tuple[str, Any]], model: str) -> dict[str, Any]:
    """What a backend gets of these members, apart from `stream_options`."""
    given = dict(pairs)
    known = {"model": model, "temperature": 0.5, "seed": 7}
    known |= {
        name: value for name, value in given.items() if value is not None or name not in known
    }
    known["model"] = model
    for name in ("max_tokens", "max_completion_tokens"):
        if (given.get(name) or 0) > 50:
            known[name] = 50
    if not given.get("max_tokens") and not given.get("max_completion_tokens"):
        known["max_tokens"] = 50
    known.pop("stream_options", None)
    return known


@pytest.mark.parametrize("seed", range(60))
def test_a_body_keeps_one_member_of_each_name(play: Play, seed: int) -> None:
    rng = Random(seed)
    pairs = body_of(rng)
    falls_back = rng.random() < 0.3
    if falls_back:
        play.down["b1"] = REFUSED
    sends(play, written(pairs, rng))
    name, model = ("b2", "llama") if falls_back else ("b1", "qwen")
    sent = single(play[name].body)
    options = sent.pop("stream_options", None)
    given = dict(pairs)
    if given["stream"] and given.get("stream_options") != {}:
        assert options == {"include_usage": True}
    assert sent == wanted(pairs, model)
    play[name].sends(text("a"))
    play.passes(0.5)
    copy = single(play["b3"].body)
    copy.pop("stream_options", None)
    assert copy == wanted(pairs, "new") | ({"store": False} if "store" in given else {})


def test_values_are_replaced_where_they_stand_and_others_keep_their_bytes(play: Play) -> None:
    sends(
        play,
        rb'{ "\u006dodel" : "gpt-4o" ,"max_tokens":999,"x" : [1.50, {"model":2}],"temperature": 1,'
        rb'"stream":true, "stream_options" : null, "seed":null } ',
    )
    assert play["b1"].body == (
        rb'{ "\u006dodel" : "qwen" ,"max_tokens":50,"x" : [1.50, {"model":2}],"temperature": 1,'
        rb'"stream":true, "stream_options" : {"include_usage":true}, "seed":7 } '
    )


@pytest.mark.parametrize("pad", [0, 6_000, LARGE])
@pytest.mark.parametrize("name", ["model", "stream", "max_tokens", "messages", "temperature"])
def test_a_member_given_twice_is_refused_by_name(play: Play, name: str, pad: int) -> None:
    members = ['"model":"gpt-4o"', '"stream":true', '"max_tokens":5', '"temperature":1']
    members += ['"messages":[]', f'"other":"{"x" * pad}"']
    again = name[:-1] + f"\\u{ord(name[-1]):04x}"
    twice = next(each for each in members if each.startswith(f'"{name}"'))
    for more in (twice, twice.replace(f'"{name}"', f'"{again}"'), f'"{name}" : null'):
        for body in ([*members, more], [more, *members]):
            sends(play, f"{{{','.join(body)}}}".encode())
            answer = play.client.written
            play.client.written = b""
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"`%b` is given twice" % name.encode() in answer
    assert "b1 dialed" not in play.happened()


def test_other_members_given_twice_are_the_backends_to_judge(play: Play) -> None:
    sends(play, b'{"model":"m","other":1,"other":2,"messages":[{"role":1,"role":2,"model":3}]}')
    assert play["b1"].body.count(b'"other"') == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((path, "model") for path in ("/v1/embeddings", "/v1/rerank", "/v2/embed", "/tokenize")),
        *(("/v1/rerank", "documents"), ("/v2/embed", "texts"), ("/v1/score", "text_1")),
    ],
)
def test_a_doubled_member_of_any_path_is_refused(play: Play, path: str, name: str) -> None:
    member = '"model":"%s"' if name == "model" else f'"{name}":["%s"]'
    sends(play, f'{{"model":"m","input":"x",{member % "x"},{member % "y"}}}'.encode(), path)
    assert b"`%b` is given twice" % name.encode() in play.client.written
