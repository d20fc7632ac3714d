"""What a stream costs its tenant if it begins with the backend's refusal."""

import pytest

from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, chunk, token
from tests.unit.proxy.data.test_budgets import KEY, USAGE, playing, used

BEGUN = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
ROLE = chunk(BEGUN)
LARGE = chunk(BEGUN.replace(b"{", b"{" + 600_000 * b" ", 1))  # two are more than is held
PING = chunk(b": ping\n\n")
REFUSAL = b'data: {"error":{"message":"no","type":"BadRequestError","code":400}}\n\n'


def refusal(code: int = 400) -> bytes:
    return chunk(REFUSAL.replace(b"400", b"%d" % code))


def asked(hold_s: float) -> Play:
    """A long prompt is sent. With a second to hold, its client has its 200 by now."""
    play = playing(timeouts={"hold_s": hold_s})
    play.client.sends(chat(head=KEY, content="all work " * 1_000))
    play.passes(1.5)
    return play


@pytest.mark.parametrize("hold_s", [1, 60], ids=["held", "not held"])
@pytest.mark.parametrize(("code", "costs"), [(400, 1), (422, 1), (408, 0)])
def test_one_that_begins_with_a_refusal_costs_no_tokens(
    code: int, costs: int, hold_s: float
) -> None:
    play = asked(hold_s)
    play["b1"].sends(STREAM, PING, refusal(code), DONE, END)
    assert b'"BadRequestError"' in play.client.written
    assert used(play) == (costs, 0)


def test_also_if_its_client_leaves_before_the_framing_ends() -> None:
    play = asked(60)
    play["b1"].sends(STREAM, refusal())
    play.client.closes()
    assert used(play) == (1, 0)


@pytest.mark.parametrize(
    "parts",
    [
        [token("a"), refusal()],
        [refusal(), token("a")],
        [ROLE, refusal()],
        [LARGE, LARGE, ROLE, refusal()],
    ],
    ids=["a token", "a token later", "the role", "more than is held"],
)
def test_one_with_a_sign_of_work_costs_its_prompt(parts: list[bytes]) -> None:
    play = asked(60)
    play.streams("b1")
    for each in (*parts, DONE + END):
        play["b1"].sends(each)
    assert used(play)[0] == 1
    assert 1_500 < used(play)[1] < 2_500


def test_what_the_backend_has_counted_is_charged() -> None:
    play = playing()
    play.client.sends(chat(head=KEY))
    play["b1"].sends(STREAM, refusal(), USAGE, DONE, END)
    assert used(play) == (1, 50)
