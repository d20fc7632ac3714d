"""Where a session's key stands, and which values are one."""

import orjson
import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.session_key import HASHED_BYTES_MAX, KEY_BYTES_MAX, SessionKeys
from penstock.balancing.tokens import TokenEstimator

JSON = (b"content-type", b"application/json")
KEYS = SessionKeys(["x-session-id", "X-Chat"], ["prompt_cache_key", "user"])


def ask(body: bytes, *headers: tuple[bytes, bytes], keys: SessionKeys | None = KEYS) -> Ask:
    return Reader(TokenEstimator(), sessions=keys).read(
        "/v1/chat/completions", [JSON, *headers], body, GENERATION
    )


def session(
    body: bytes, *headers: tuple[bytes, bytes], keys: SessionKeys | None = KEYS
) -> str | None:
    return ask(body, *headers, keys=keys).session


def test_headers_come_first_in_the_configured_order() -> None:
    body = b'{"user":"u","prompt_cache_key":"p"}'
    both = ((b"x-chat", b"chat"), (b"x-session-id", b"id"))
    assert session(body, *both) == "id"
    assert session(body, both[0]) == "chat"
    assert session(body) == "p"
    assert session(b'{"user":"u"}') == "u"
    assert session(b'{"model":"m"}') is None


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"abc"', "abc"),
        (rb'"a\u0062c"', "abc"),
        ('"é河"'.encode(), "é河"),
        (b"123", "123"),
        (b"-1.5", "-1.5"),
        (b"0", "0"),
        (b'""', None),
        (b"null", None),
        (b"true", None),
        (b"[1]", None),
        (b'{"id":1}', None),
        (b'"\xff"', None),
    ],
)
def test_only_strings_and_numbers_are_keys(value: bytes, key: str | None) -> None:
    assert session(b'{"prompt_cache_key":%b}' % value) == key
    assert session(b'{"prompt_cache_key":%b,"user":"u"}' % value) == (key or "u")


def test_an_empty_header_is_none() -> None:
    assert session(b"{}", (b"x-session-id", b"")) is None
    assert session(b"{}", (b"x-session-id", b""), (b"x-chat", b"c")) == "c"


def test_only_the_top_level_counts() -> None:
    assert session(b'{"metadata":{"user":"u"},"messages":[{"user":"v"}]}') is None


@pytest.mark.parametrize("size", [KEY_BYTES_MAX + 1, 1_000_000])
def test_long_keys_are_hashed(size: int) -> None:
    for one, other in (
        (session(b"{}", (b"x-session-id", b"k" * size)), session(b"{}", (b"x-chat", b"j" * size))),
        (session(b'{"user":"%b"}' % (b"k" * size)), session(b'{"user":"j%b"}' % (b"k" * size))),
        (session(b'{"user":%b}' % (b"1" * size)), session(b'{"user":2%b}' % (b"1" * size))),
    ):
        assert one is not None
        assert other is not None
        assert len(one) == len(other) == 32
        assert one != other
    assert session(b"{}", (b"x-session-id", b"k" * KEY_BYTES_MAX)) == "k" * KEY_BYTES_MAX


def test_only_the_beginning_of_a_long_key_is_hashed() -> None:
    keys = [b"k" * HASHED_BYTES_MAX + end for end in (b"one", b"other")]
    assert len({session(b"{}", (b"x-session-id", key)) for key in keys}) == 1


def test_any_name_may_be_configured() -> None:
    """Names that the reader reads anyway, Python's own words, repeated ones, none at all."""
    for name in ("model", "class", "a-b", "session_0", "é", "previous_response_id", "max_tokens"):
        keys = SessionKeys([], [name, name])
        value = 7 if name == "max_tokens" else "k"
        assert session(orjson.dumps({name: value}), keys=keys) == str(value)
    assert session(b'{"user":"u"}', (b"x-session-id", b"s"), keys=SessionKeys([], [])) is None


def test_nobody_reads_it_unasked_and_the_rest_of_the_ask_is_the_same() -> None:
    body = b'{"model":"m","n":2,"stream":true,"max_tokens":5,"prompt":["a","b"],"user":"u"}'
    mine, without = ask(body), ask(body, keys=None)
    assert (mine.session, without.session) == ("u", None)
    for name in ("model", "prompts", "choices", "stream", "max_tokens", "prompt_tokens"):
        assert getattr(mine, name) == getattr(without, name)


def test_other_bodies_have_only_headers() -> None:
    for headers in ([(b"content-type", b"multipart/form-data; boundary=x")], []):
        body = b'--x--{"user":"u"}' if headers else b""
        seen = Reader(TokenEstimator(), sessions=KEYS).read(
            "/v1/audio/transcriptions", [*headers, (b"x-session-id", b"s")], body, GENERATION
        )
        assert seen.session == "s"
