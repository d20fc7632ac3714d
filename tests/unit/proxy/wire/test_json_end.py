"""Where JSON that goes by in pieces ends."""

import orjson
import pytest

from penstock.proxy.data.json_relay import WHOLE_BYTES_MAX
from penstock.proxy.errors.backend import AnswerCut, StreamBroken
from penstock.proxy.wire.json_object import JsonEnd
from tests.unit.proxy.data.relayed import JSON, Request

BODY = orjson.dumps(
    {"data": [{"embedding": [0.25, -1e-7], "x": 'a "quoted\\" } ] \\'}, [], {}], "n": None}
)


def test_it_ends_where_all_is_closed_wherever_it_is_cut() -> None:
    for cut in range(len(BODY)):
        for second in range(cut, len(BODY) + 1, 5):
            end = JsonEnd()
            end.feed(BODY[:cut])
            end.feed(BODY[cut:second])
            assert end.reached is (second in (0, len(BODY)))


def test_byte_by_byte() -> None:
    end = JsonEnd()
    for at in range(len(BODY)):
        end.feed(BODY[at : at + 1])
        assert end.reached is (at == len(BODY) - 1)


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
