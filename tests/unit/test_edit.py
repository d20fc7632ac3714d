"""Edits change top-level keys; every other value keeps its bytes."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from balancing.peek import peek
from balancing.tokens import TokenEstimator
from proxy.edit import with_keys, with_usage_asked


def edited(body: bytes) -> bytes:
    ask = peek("/v1/completions", [], body, TokenEstimator())
    return with_usage_asked(body, ask)


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


def test_the_clients_own_options_are_merged() -> None:
    body = b'{"stream":true,"stream_options":{"continuous_usage_stats": true}}'
    options = values(edited(body))["stream_options"]
    assert values(options) == {"continuous_usage_stats": b"true", "include_usage": b"true"}


def test_false_becomes_true_and_null_an_object() -> None:
    for options in (b'{"include_usage":false}', b"null", b"{}"):
        body = b'{"stream":true,"stream_options":%b}' % options
        assert values(edited(body))["stream_options"] == b'{"include_usage":true}'


def test_odd_options_are_left_to_the_backend() -> None:
    body = b'{"stream":true,"stream_options":[1, 2]}'
    assert edited(body) == body


values_of_any_shape = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), values_of_any_shape, max_size=6))
def test_any_object_keeps_all_but_the_key(fields: dict[str, object]) -> None:
    body = msgspec.json.encode(fields)
    after = values(with_keys(body, {"new": b"[1, 2 ]"}))
    assert after.pop("new") == b"[1, 2 ]"
    before = values(body)
    before.pop("new", None)
    assert after == before
