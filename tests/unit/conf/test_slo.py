"""Service levels: what is wrong with them is told with its line."""

import pytest

from tests.unit.conf.folder import FLEET, Folder


def slo(*entries: str) -> str:
    return FLEET + "slo:\n" + "".join(f"  - {entry}\n" for entry in entries)


def test_an_entry_of_every_key(folder: Folder) -> None:
    text = slo(
        "{pool: chat, class: interactive, ttft_s: {p50: 200ms, p95: 0.5}, itl_s: {p99: 0.1},"
        " e2e_s: {p95: 5}, availability: 0.999, error_rate: 0.001, goodput: 0.95, window_s: 7d}",
        "{availability: 0.99}",
    )
    first, second = folder.load(text).settings.slo
    assert first.ttft_s is not None
    assert first.ttft_s.targets == [("p50", 0.2), ("p95", 0.5)]
    assert (first.pool, first.service_class, first.window_s) == ("chat", "interactive", 604_800)
    assert (second.pool, second.service_class, second.window_s) == (None, None, 2_592_000)
    assert folder.load(FLEET).settings.slo == ()


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{pool: chat}", "slo[0]: give one or more of ttft_s, itl_s, e2e_s, availability,"),
        ("{goodput: 0.9}", "slo[0]: goodput needs a latency target"),
        ("{ttft_s: {}}", "slo[0].ttft_s: give one or more of p50, p90, p95 and p99"),
        ("{ttft_s: {p95: 2, p99: 1}}", "slo[0].ttft_s: p99 must be at least p95, which is 2"),
        ("{ttft_s: {p95: 0}}", "slo[0].ttft_s.p95: must be at least 0.001, got 0"),
        ("{ttft_s: {p95: 3 parsecs}}", "slo[0].ttft_s.p95: must be a number of seconds, or a"),
        ("{ttft_s: {p97: 1}}", "slo[0].ttft_s.p97: unknown key; did you mean p"),
        ("{ttft_s: 0.5}", "slo[0].ttft_s: must be a mapping of keys"),
        ("{ttft: {p95: 1}}", "slo[0].ttft: unknown key; did you mean ttft_s?"),
        ("{availability: 99.9}", "slo[0].availability: must be at most 0.99999, got 99.9"),
        ("{availability: 1}", "slo[0].availability: must be at most 0.99999, got 1"),
        ("{availability: .nan}", "slo[0].availability: must be"),
        ("{error_rate: 0}", "slo[0].error_rate: must be at least 1e-05, got 0"),
        ("{goodput: 0.1, ttft_s: {p95: 1}}", "slo[0].goodput: must be at least 0.5, got 0.1"),
        ("{availability: 0.9, window_s: 60}", "slo[0].window_s: must be at least 3600, got 60"),
        ("{availability: 0.9, window_s: 1000d}", "slo[0].window_s: must be at most 7776000"),
        (
            "{pool: chatt, availability: 0.9}",
            'slo[0].pool: there is no pool chatt: there are chat, got "chatt"',
        ),
        (
            "{class: fast, availability: 0.9}",
            "slo[0].class: there is no class fast: there are interactive, standard, batch",
        ),
        ("ttft", "slo[0]: must be a mapping of keys"),
    ],
)
def test_every_wrong_value_is_told(folder: Folder, entry: str, problem: str) -> None:
    (told,) = folder.issues(slo(entry))
    assert told.startswith(f"conf.yaml:6: {problem}")


@pytest.mark.parametrize(
    "place", ["", "pool: chat, ", "class: batch, ", "pool: chat, class: batch, "]
)
def test_an_slo_is_given_once(folder: Folder, place: str) -> None:
    text = slo(f"{{{place}availability: 0.9}}", f"{{{place}ttft_s: {{p95: 1}}}}")
    assert folder.issues(text) == [
        "conf.yaml:7: slo[1]: has the same pool and class as slo[0]: put both in one"
    ]


def test_all_that_is_wrong_is_told_at_once(folder: Folder) -> None:
    text = slo("{pool: x, class: y, availability: 0.9}", "{pool: z, availability: 0.9}")
    assert [each.partition(": there")[0] for each in folder.issues(text)] == [
        "conf.yaml:6: slo[0].pool",
        "conf.yaml:6: slo[0].class",
        "conf.yaml:7: slo[1].pool",
    ]


def test_there_is_a_limit(folder: Folder) -> None:
    (told,) = folder.issues(slo(*["{availability: 0.9}"] * 65))
    assert "must have at most 64 entries" in told
