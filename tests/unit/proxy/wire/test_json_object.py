"""The token counts in JSON that passes in pieces, and where it ends."""

import orjson
import pytest

from penstock.proxy.data.json_relay import WHOLE_BYTES_MAX
from penstock.proxy.errors.backend import AnswerCut, StreamBroken
from penstock.proxy.wire.json_object import OBJECT_BYTES_MAX, JsonEnd, JsonObject
from tests.unit.proxy.data.relayed import JSON, Request

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


# Where it ends --------------------------------------------------------------------------------

NESTED = orjson.dumps(
    {"data": [{"embedding": [0.25, -1e-7], "x": 'a "quoted\\" } ] \\'}, [], {}], "n": None}
)


def test_it_ends_where_all_is_closed_wherever_it_is_cut() -> None:
    bytewise = JsonEnd()
    for at in range(len(NESTED)):
        bytewise.feed(NESTED[at : at + 1])
        assert bytewise.reached is (at == len(NESTED) - 1)
    for cut in range(len(NESTED)):
        for second in range(cut, len(NESTED) + 1, 5):
            end = JsonEnd()
            end.feed(NESTED[:cut])
            end.feed(NESTED[cut:second])
            assert end.reached is (second in (0, len(NESTED)))


@pytest.mark.parametrize("missing", [1, 2, 40, 5_000])
def test_a_large_answer_that_its_close_cuts_is_broken(missing: int) -> None:
    """Nothing else tells: it has no length and is no longer held."""
    body = b'{"data":[%b{"x":"]}"}]}' % (b'{"embedding":[0.5,1]},' * (WHOLE_BYTES_MAX // 20))
    whole = Request(head=JSON).feed(body[:70_000], body[70_000:])
    whole.relay.end()
    assert (whole.ends, whole.complete) == ([None], True)
    cut = Request(head=JSON).feed(body[:70_000], body[70_000:-missing])
    cut.relay.end()
    assert isinstance(cut.ends[0], StreamBroken)
    assert isinstance(cut.ends[0].of_backend, AnswerCut)
    assert not cut.complete
