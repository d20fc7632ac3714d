"""What is remembered of a classifier's answers, and how much may be asked at once."""

import pytest

from penstock.balancing.labels import (
    AT_ONCE,
    AT_ONCE_OF_ONE,
    CLIENTS_MAX,
    HELD_UP_S,
    IN_A_ROW,
    KEPT_S,
    LABEL_CHARS_MAX,
    Labels,
    label_in,
)

pytestmark = pytest.mark.once

KEY = b"k" * 32
TEXT = b"What is the time?"


@pytest.fixture
def labels() -> Labels:
    return Labels(10, KEY)


def known(labels: Labels, client: str, text: bytes, label: str, now_s: float = 0.0) -> None:
    """A client has asked, and was answered."""
    assert labels.begin(client, now_s)
    labels.end(client, labels.mark(text), label, now_s)


def test_an_answer_is_remembered_for_a_time(labels: Labels) -> None:
    mark = labels.mark(TEXT)
    assert labels.find("a", mark, 0.0) is None
    known(labels, "a", TEXT, "simple")
    assert labels.find("a", mark, KEPT_S - 1) == "simple"
    assert labels.find("a", mark, KEPT_S) is None


def test_a_failure_is_not_remembered(labels: Labels) -> None:
    assert labels.begin("a", 0.0)
    labels.end("a", labels.mark(TEXT), None, 0.0)
    assert labels.find("a", labels.mark(TEXT), 0.0) is None
    assert labels.asking == 0


def test_nobody_learns_what_others_asked(labels: Labels) -> None:
    known(labels, "a", TEXT, "simple")
    assert labels.find("b", labels.mark(TEXT), 0.0) is None
    assert Labels(10, b"other").mark(TEXT) != labels.mark(TEXT)


def test_one_client_cannot_empty_the_memory_for_others() -> None:
    labels = Labels(100, KEY)
    for number in range(20):
        known(labels, "victim", b"%d" % number, "simple")
    for number in range(10_000):
        known(labels, "attacker", b"%d" % number, "hard")
    kept = [labels.find("victim", labels.mark(b"%d" % n), 0.0) for n in range(20)]
    assert kept == ["simple"] * 20


def test_one_client_cannot_take_all_places(labels: Labels) -> None:
    began = [labels.begin("attacker", 0.0) for _ in range(AT_ONCE)]
    assert began.count(True) == AT_ONCE_OF_ONE
    assert labels.begin("victim", 0.0)
    labels.end("attacker", labels.mark(TEXT), "hard", 0.0)
    assert [labels.begin("attacker", 0.0) for _ in range(2)] == [True, False]


def test_so_many_are_asked_at_once_of_all_clients(labels: Labels) -> None:
    assert all(labels.begin(f"c{number}", 0.0) for number in range(AT_ONCE))
    assert not labels.begin("late", 0.0)
    labels.end("c0", labels.mark(TEXT), "simple", 0.0)
    assert labels.begin("late", 0.0)


@pytest.mark.parametrize(
    ("body", "label"),
    [
        (b'{"label":"simple"}', "simple"),
        (b' {"score": 0.9, "label": "simple", "of": ["simple", "hard"]} ', "simple"),
        (b'{"label":"%b"}' % (b"a" * LABEL_CHARS_MAX), "a" * LABEL_CHARS_MAX),
        (b'{"label":"%b"}' % (b"a" * (LABEL_CHARS_MAX + 1)), None),
        (b'{"label":""}', None),
        (b'{"label":null}', None),
        (b'{"label":["simple"]}', None),
        (b'{"label":"simple"', None),
        (b'"simple"', None),
        (b"simple", None),
        (b"", None),
        (b"\xff\xfe", None),
        (b"[" * 4_096, None),
    ],
)
def test_the_label_in_an_answer(body: bytes, label: str | None) -> None:
    assert label_in(body) == label


def fails(labels: Labels, client: str, times: int = 1, now_s: float = 0.0) -> bool:
    """Whether it is held up then."""
    held = False
    for _ in range(times):
        assert labels.begin(client, now_s)
        held = labels.end(client, labels.mark(TEXT), None, now_s)
    return held


def test_a_client_whose_questions_fail_is_held_up_alone_and_then_tries_one_at_a_time(
    labels: Labels,
) -> None:
    assert not fails(labels, "a", IN_A_ROW - 1)
    known(labels, "a", TEXT, "simple")  # an answer ends a run
    assert not fails(labels, "a", IN_A_ROW - 1)
    assert fails(labels, "a")
    assert not labels.begin("a", HELD_UP_S - 0.1)
    assert labels.begin("victim", HELD_UP_S - 0.1)
    assert [labels.begin("a", HELD_UP_S) for _ in range(2)] == [True, False]
    assert labels.end("a", labels.mark(TEXT), None, HELD_UP_S)
    assert not labels.begin("a", 2 * HELD_UP_S - 0.1)
    known(labels, "a", TEXT, "simple", 2 * HELD_UP_S)
    assert not fails(labels, "a", IN_A_ROW - 1, 2 * HELD_UP_S)


def test_clients_that_fail_are_counted_in_bounded_memory(labels: Labels) -> None:
    fails(labels, "a", IN_A_ROW)
    for number in range(CLIENTS_MAX - 1):
        fails(labels, f"c{number}")
    assert not labels.begin("a", 0.0)
    fails(labels, "last")
    assert labels.begin("a", 0.0)
