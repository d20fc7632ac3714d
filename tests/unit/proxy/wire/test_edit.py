"""Edits change top-level keys; every other value keeps its bytes."""

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.balancing.ask import Ask
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.tokens import TokenEstimator
from penstock.conf.routes import READ_MEMBERS
from penstock.proxy.wire.edit import Edit, parts_of, splices


def ask_of(body: bytes) -> Ask:
    return Reader(TokenEstimator()).read("/v1/completions", [], body, GENERATION)


def with_keys(body: bytes, *edits: Edit) -> bytes:
    parts = parts_of(body, splices(body, edits, ask_of(body).places))
    return b"".join(map(bytes, parts))


def edited(body: bytes) -> bytes:
    options = ask_of(body).usage_options
    return with_keys(body, (b"stream_options", options)) if options else body


def values(body: bytes) -> dict[str, bytes]:
    decoded = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return {key: bytes(value) for key, value in decoded.items()}


def test_odd_values_keep_their_bytes() -> None:
    body = (
        rb'{ "model" : "m", "stream":true, "big":123456789012345678901234567890.10e2,'
        rb' "text":"\u00e9 \/ \ud83d\ude80", "nested" : { "a" : [ 1 , 2 ] , "a" : 3 }, "\u0078":1 }'
    )
    before, after = values(body), values(edited(body))
    assert after.pop("stream_options") == b'{"include_usage":true}'
    assert after == before


@pytest.mark.parametrize("asked", [b"false", b"null"])
def test_who_wants_no_usage_gets_none_in_any_chunk(asked: bytes) -> None:
    """A backend that is asked for usage tells it in the one chunk that is hidden."""
    body = b'{"stream":true,"stream_options":{"x":[1, 2],"include_usage":%b}}' % asked
    options = values(edited(body))["stream_options"]
    assert values(options) == {"x": b"[1, 2]", "include_usage": b"true"}
    every = body.replace(b'"x":[1, 2]', b'"continuous_usage_stats": true')
    options = values(edited(every))["stream_options"]
    assert values(options) == {"continuous_usage_stats": b"false", "include_usage": b"true"}


@pytest.mark.parametrize(
    "options",
    [
        b'{"include_usage":true}',
        b'{"include_usage":true,"continuous_usage_stats":true}',
        b'{ "include_usage" : true , "x" : [1] }',
    ],
)
def test_what_the_client_asks_for_is_left(options: bytes) -> None:
    body = b'{"stream":true,"stream_options":%b}' % options
    assert edited(body) == body


def test_no_options_and_null_become_an_object() -> None:
    for body in (
        b'{"stream":true}',
        b'{"stream":true,"stream_options":null } ',
        b'{"stream":true,"stream_options":{}}',
    ):
        assert values(edited(body))["stream_options"] == b'{"include_usage":true}'


# What penstock reads must have its own form.
names = st.text().filter(lambda name: name not in READ_MEMBERS)
values_of_any_shape = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(names, values_of_any_shape, max_size=6))
def test_any_object_keeps_all_but_the_key(fields: dict[str, object]) -> None:
    body = msgspec.json.encode({"stream": True, **fields})
    after = values(with_keys(body, (b"new", b"[1, 2 ]")))
    assert after.pop("new") == b"[1, 2 ]"
    before = values(body)
    before.pop("new", None)
    assert after == before


@pytest.mark.parametrize("odd", [2, 1, "", "true", "off", "x", [], {}])
@pytest.mark.parametrize("name", ["include_usage", "continuous_usage_stats"])
def test_options_are_true_or_false(name: str, odd: object) -> None:
    """Else a backend may tell no usage where it is thought to."""
    body = orjson.dumps({"stream": True, "prompt": "x", "stream_options": {name: odd}})
    with pytest.raises(MalformedAsk, match=f"`stream_options.{name}` must be true or false"):
        ask_of(body)


@pytest.mark.parametrize("odd", [b"[1, 2]", b'"odd"', b"1", b'{"x":"%b"}' % (b"x" * 1_024)])
def test_options_are_a_short_object(odd: bytes) -> None:
    with pytest.raises(MalformedAsk, match="`stream_options` must be an object"):
        ask_of(b'{"stream":true,"prompt":"x","stream_options":%b}' % odd)
