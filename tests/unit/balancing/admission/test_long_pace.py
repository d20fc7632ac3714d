"""When a long prompt may follow another one, beside slow streams."""

import pytest

from penstock.balancing.admission.long_pace import LongPace


def after(*sent: tuple[float, float]) -> LongPace:
    """Those of class 1 that were sent: how long each takes, and when."""
    pace = LongPace()
    for prefill_s, now_s in sent:
        pace.sent(1, prefill_s, now_s)
    return pace


def free_s(pace: LongPace, prefill_s: float, rank: int = 1) -> float:
    """When the next one that takes so long may follow."""
    tenths = 0
    while pace.holds_back(rank, prefill_s, tenths / 10):
        tenths += 1
    return tenths / 10


def test_the_streams_have_twice_the_time_of_what_follows() -> None:
    assert free_s(after((4.0, 0.0)), 4.0) == 12.0
    assert free_s(after((4.0, 0.0)), 1.0) == 6.0


def test_what_is_much_longer_waits_no_longer_than_one_of_the_same_length() -> None:
    assert free_s(after((1.0, 0.0)), 20.0) == 3.0


def test_the_next_long_one_waits_for_shorter_ones_that_went_before_their_time() -> None:
    assert free_s(after((4.0, 0.0), (1.0, 6.0)), 4.0) == 15.0


def test_shorter_ones_put_the_next_long_one_off_for_so_long_at_most() -> None:
    pace, now_s, sent = LongPace(), 0.0, 0
    pace.sent(1, 4.0, 0.0)
    while now_s < 24.0:
        if not pace.holds_back(1, 1.0, now_s):
            pace.sent(1, 1.0, now_s)
            sent += 1
        now_s += 0.1
    assert sent == 4  # they take as long as the long one
    assert not pace.holds_back(1, 4.0, 24.0)


def test_whatever_the_mixture_the_engine_works_on_long_prompts_for_a_third_of_the_time() -> None:
    for lengths_s in ([4.0, 1.0], [8.0, 4.0, 2.0, 1.0, 0.6], [1.0, 20.0], [0.6, 0.6]):
        pace, busy_s, now_s = LongPace(), 0.0, 0.0
        while now_s < 600.0:
            for prefill_s in lengths_s:
                if not pace.holds_back(1, prefill_s, now_s):
                    pace.sent(1, prefill_s, now_s)
                    busy_s += prefill_s
            now_s += 0.1
        assert 0.3 < busy_s / now_s < 0.36, lengths_s


def test_those_that_are_sent_together_are_worked_on_one_after_the_other() -> None:
    assert free_s(after((4.0, 0.0), (4.0, 0.0)), 1.0) == 10.0


@pytest.mark.parametrize(("left_s", "next_s"), [(0.5, 1.5), (2.0, 6.0), (9.0, 12.0)])
def test_one_that_has_left_took_no_more_than_its_time(left_s: float, next_s: float) -> None:
    pace = LongPace()
    pace.left(1, pace.sent(1, 4.0, 0.0), 0.0, left_s)
    assert free_s(pace, 4.0) == next_s


def test_one_that_has_left_takes_nothing_of_what_the_engine_still_works_on() -> None:
    pace = after((4.0, 0.0))
    pace.left(1, pace.sent(1, 1.0, 6.0), 6.0, 6.5)
    assert free_s(pace, 4.0) == 13.5


def test_one_that_has_left_takes_no_time_from_the_streams_that_it_had_not_given_them() -> None:
    """It was sent beside another one, while no stream was slow."""
    pace = after((4.0, 0.0))
    pace.left(1, pace.sent(1, 4.0, 3.0), 3.0, 3.0)
    assert free_s(pace, 4.0) == 12.0


def test_shorter_ones_have_no_more_time_than_one_that_has_left_took() -> None:
    pace, now_s = LongPace(), 1.0
    pace.left(1, pace.sent(1, 8.0, 0.0), 0.0, 1.0)
    while now_s < 6.0:
        if not pace.holds_back(1, 0.5, now_s):
            pace.sent(1, 0.5, now_s)
        if now_s < 3.0:
            assert pace.holds_back(1, 8.0, now_s)
        now_s += 0.1
    assert free_s(pace, 8.0) <= 6.5


def test_each_class_has_a_pace_of_its_own() -> None:
    pace = after((4.0, 0.0))
    assert free_s(pace, 4.0, 2) == 0.0
    pace.sent(2, 1.0, 20.0)
    assert [pace.runs(at_s) for at_s in (0.0, 22.9, 23.0)] == [True, True, False]


def test_after_a_reload_that_adds_a_class_each_keeps_its_own() -> None:
    pace = after((4.0, 0.0))
    pace.sent(0, 1.0, 0.0)
    pace.reshape([1, 2])
    assert [free_s(pace, 4.0, rank) for rank in range(3)] == [0.0, 3.0, 12.0]
    pace.reshape([0, 1, 1])
    assert free_s(pace, 4.0) == 12.0
