"""The token counts in JSON that passes in pieces."""

import orjson
import pytest

from penstock.proxy.wire.json_object import OBJECT_BYTES_MAX, JsonObject

COUNTS = b'{"prompt_tokens": 3, "details": {"cached": 1}}'
BODY = (
    b'{"id": "a \\"usage\\": {}", '
    b'"choices": [{"token": "usage"}, {"usage": {"prompt_tokens": 9}}], '
    b'"usage" : %b, "more": [{"x": "} ] \\\\"}]}' % COUNTS
)


@pytest.mark.parametrize("size_bytes", [1, 2, 3, 7, 50, 64, 65, len(BODY)])
def test_it_is_found_wherever_the_pieces_end(size_bytes: int) -> None:
    orjson.loads(BODY)
    for filler in (b"", b" " * 70_000):
        found = JsonObject(b"usage", 1)
        body = filler + BODY + filler
        for at in range(0, len(body), size_bytes):
            found.feed(body[at : at + size_bytes])
        assert found.text == COUNTS


def test_at_another_depth_is_another_object() -> None:
    found = JsonObject(b"usage", 3)
    found.feed(BODY)
    assert found.text == b'{"prompt_tokens": 9}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"usage": null}',
        BODY[: BODY.index(COUNTS) + 20],
        b'{"usage": {"a": "%b"}}' % (b"x" * OBJECT_BYTES_MAX),
        b'{"usage": {"a": "\xff" nothing}}',
    ],
)
def test_what_is_no_whole_object_is_nothing(body: bytes) -> None:
    found = JsonObject(b"usage", 1)
    found.feed(body)
    assert found.text == b""


def test_many_of_that_name_elsewhere_do_not_hide_it() -> None:
    body = b'{"tools":[%b0],%b:%b,"user":"x"}' % (b'{"usage":{}},' * 20_000, b'"usage"', COUNTS)
    found = JsonObject(b"usage", 1)
    for at in range(0, len(body), 65_536):
        found.feed(body[at : at + 65_536])
    assert found.text == COUNTS
