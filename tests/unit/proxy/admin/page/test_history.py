"""What the charts have shown: bounded, with gaps where nothing was known."""

from math import isnan
from typing import Any, cast

from penstock.proxy.admin.page.history import MINUTES, SECONDS, History, Rates


class Clock:
    at_s = 1_000.0

    def __call__(self) -> float:
        return self.at_s


def rate(answers: float | None, ttft_s: float | None = None) -> dict[str, object]:
    return {
        "answer_tokens_per_s": answers,
        "prompt_tokens_per_s": 0.0,
        "ttft_p50_s": ttft_s,
        "ttft_p95_s": ttft_s,
    }


def played(seconds: list[dict[str, dict[str, object]]]) -> History:
    clock = Clock()
    history = History(cast("Rates", None), clock)
    for each in seconds:
        history.add(each)
        clock.at_s += 1.0
    return history


def columns(history: History, name: str) -> Any:
    return history.told()[name]


def test_a_day_takes_no_more_room_than_its_rows() -> None:
    history = played([{"a": rate(float(at))} for at in range(90_000)])
    assert [len(each) for each in columns(history, "seconds")] == [SECONDS] * 5
    assert [len(each) for each in columns(history, "minutes")] == [MINUTES] * 5
    assert columns(history, "seconds")[1][-1] == 89_999.0
    times, means = columns(history, "minutes")[:2]
    assert times[-1] - times[-2] == 60.0
    assert means[-1] - means[-2] == 60.0


def test_pools_are_added_up_and_the_slowest_tells_the_time_to_first_token() -> None:
    history = played([{"a": rate(10.0, 0.2), "b": rate(5.0, 0.7), "": rate(None)}])
    answers, prompts, _, p95_s = [each[0] for each in columns(history, "seconds")[1:]]
    assert (answers, prompts, p95_s) == (15.0, 0.0, 0.7)


def test_what_nobody_knows_is_a_gap() -> None:
    history = played([{"a": rate(None)}, {}])
    assert all(isnan(each) for each in columns(history, "seconds")[1])


def test_a_clock_that_is_put_back_drops_what_was_before() -> None:
    clock = Clock()
    history = History(cast("Rates", None), clock)
    for at_s in (100.0, 101.0, 50.0, 51.0):
        clock.at_s = at_s
        history.add({"a": rate(1.0)})
    assert columns(history, "seconds")[0] == [50.0, 51.0]
