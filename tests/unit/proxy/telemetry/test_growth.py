"""How much counters grew lately."""

from penstock.proxy.telemetry.metrics import COPIES, COPY_S, Growth, Metrics


def test_growth_is_that_of_the_last_minutes_the_most_first() -> None:
    growth = Growth()
    growth.look({"old": 5}, -COPY_S)
    assert growth.since({"old": 6}) == {"old": 6}  # all of it is recent
    for number in range(COPIES):
        assert growth.is_due(COPY_S * (number + 1))
        growth.look({"old": 7, "new": number}, COPY_S * (number + 1))
        assert not growth.is_due(COPY_S * (number + 1.9))
    grown = growth.since({"old": 8, "new": 5, "still": 0})
    assert list(grown.items()) == [("new", 5), ("old", 1)]
    assert len(growth._copies) == COPIES


def test_before_the_first_copy_everything_is_recent() -> None:
    assert Growth().since({"wait": 3, "lag": 0}) == {"wait": 3}


def test_refused_requests_are_told_by_reason_of_all_classes_until_they_are_old() -> None:
    metrics = Metrics([])
    metrics.measure(0.0)
    for service_class in ("batch", "standard"):
        metrics.shed.add("wait", service_class)
    metrics.shed.add("lag", "0")
    for minute in (1, 2, 3):
        told = metrics.shed_growth.since(metrics.shed_by_reason())
        assert told == {"wait": 2, "lag": 1}
        metrics.measure(minute * COPY_S)
    assert metrics.shed_growth.since(metrics.shed_by_reason()) == {}
