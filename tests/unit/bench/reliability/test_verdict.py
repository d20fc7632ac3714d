"""What an answer is worth: the judge of the soak must not be bribed."""

from random import Random

import orjson
import pytest

from penstock.bench.client import Answer
from penstock.bench.reliability.soak import Trend
from penstock.bench.reliability.workload import PATHS, Verdict, Wanted, judge, wanted

REQUEST = wanted(7, Random(0), tokens=6, path="/v1/chat/completions")


def answer(
    body: bytes, *, status: int = 200, kind: str = "text/event-stream", ended: bool = True
) -> Answer:
    made = Answer()
    made.status = status
    made.headers = {"x-request-id": REQUEST.request_id, "content-type": kind}
    made.body = bytearray(body)
    made.ended = ended
    return made


def event(text: str, request_id: str = REQUEST.request_id) -> bytes:
    choice = {"index": 0, "delta": {"content": text}}
    return b"data: %b\n\n" % orjson.dumps({"id": f"chatcmpl-{request_id}", "choices": [choice]})


HALF = len(REQUEST.text) // 2
FIRST, SECOND = event(REQUEST.text[:HALF]), event(REQUEST.text[HALF:])
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"broken"}}\n\n'


@pytest.mark.parametrize(
    ("body", "ended", "verdict"),
    [
        (FIRST + SECOND + DONE, True, Verdict.WHOLE),
        (FIRST + b": ping\n\n" + SECOND + DONE, True, Verdict.WHOLE),
        (FIRST + SECOND + DONE, False, Verdict.TOLD),
        (FIRST + ERROR, False, Verdict.TOLD),
        (FIRST, False, Verdict.TOLD),
        (FIRST, True, Verdict.TRUNCATED),
        (FIRST + DONE, True, Verdict.TRUNCATED),
        (FIRST + SECOND, True, Verdict.TRUNCATED),
        (SECOND + DONE, True, Verdict.MIXED),
        (FIRST + FIRST + SECOND + DONE, True, Verdict.MIXED),
        (FIRST + event("x"), False, Verdict.MIXED),
        (FIRST + event(REQUEST.text[HALF:], "bench-8") + DONE, True, Verdict.MIXED),
        (event("x") + ERROR, False, Verdict.MIXED),
        (b"data: {\n\n" + DONE, True, Verdict.MALFORMED),
    ],
)
def test_a_stream(body: bytes, ended: bool, verdict: Verdict) -> None:
    assert judge(REQUEST, answer(body, ended=ended)) is verdict


def test_who_leaves_cannot_be_cut_but_can_be_mixed() -> None:
    assert judge(REQUEST, answer(FIRST, ended=False), left=True) is Verdict.TOLD
    assert judge(REQUEST, answer(event("x"), ended=False), left=True) is Verdict.MIXED


def plain(text: str, request_id: str = REQUEST.request_id) -> bytes:
    return orjson.dumps(
        {"id": f"chatcmpl-{request_id}", "choices": [{"message": {"content": text}}]}
    )


@pytest.mark.parametrize(
    ("body", "ended", "verdict"),
    [
        (plain(REQUEST.text), True, Verdict.WHOLE),
        (plain(REQUEST.text)[:-9], False, Verdict.TOLD),
        (plain(REQUEST.text)[:-9], True, Verdict.MALFORMED),
        (plain(REQUEST.text[:HALF]), True, Verdict.TRUNCATED),
        (plain("x"), True, Verdict.MIXED),
        (plain(REQUEST.text, "bench-8"), True, Verdict.MIXED),
    ],
)
def test_a_plain_answer(body: bytes, ended: bool, verdict: Verdict) -> None:
    given = answer(body, kind="application/json", ended=ended)
    assert judge(REQUEST, given) is verdict


def test_an_error_is_told_when_it_says_what() -> None:
    told = b'{"error":{"message":"retry","code":"backend_error"}}'
    assert judge(REQUEST, answer(told, status=502, kind="application/json")) is Verdict.TOLD
    assert judge(REQUEST, answer(b"<html>", status=502)) is Verdict.MALFORMED
    assert judge(REQUEST, Answer()) is Verdict.TOLD


def test_another_requests_answer_is_known_by_its_id() -> None:
    given = answer(FIRST + SECOND + DONE)
    given.headers["x-request-id"] = "bench-8"
    assert judge(REQUEST, given) is Verdict.MIXED


def test_no_two_requests_want_the_same() -> None:
    rng = Random(1)
    made: list[Wanted] = [wanted(number, rng, tokens=32) for number in range(200)]
    assert len({each.text for each in made}) == 200
    assert {each.path for each in made} == set(PATHS)


def test_a_trend_is_a_straight_line() -> None:
    times = range(0, 50, 5)
    rising = Trend.of(times, [100.0 + 2 * at_s for at_s in times])
    assert rising.per_s == pytest.approx(2.0)
    assert rising.growth == pytest.approx(90.0)
    assert Trend.of([0, 1, 2], [5.0, 7.0, 5.0]).per_s == pytest.approx(0.0)
