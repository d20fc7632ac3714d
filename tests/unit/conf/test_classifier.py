"""The classifier: its keys, and the routes that ask for its labels."""

import pytest

from tests.unit.conf.folder import FLEET, Folder

ROUTE = "routes: [{name: r, match: {label: [simple, hard]}, to: [{pool: chat}]}]\n"
URL = "classifier: {url: http://c:9000/classify}\n"


def test_its_keys_and_their_defaults(folder: Folder) -> None:
    settings = folder.load(FLEET + URL + ROUTE).settings
    asked = settings.classifier
    assert asked is not None
    assert (asked.url, asked.deadline_ms) == ("http://c:9000/classify", 100.0)
    assert (asked.text_bytes, asked.cache_entries) == (2_048, 10_000)
    assert settings.routes[0].match.label == ("simple", "hard")
    assert folder.warnings(FLEET + URL + ROUTE) == []


def test_without_it_there_is_none(folder: Folder) -> None:
    assert folder.load(FLEET).settings.classifier is None
    assert folder.load(FLEET + "classifier: null\n").settings.classifier is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ROUTE, "5: routes[0].match.label: nobody gives labels: there is no `classifier`"),
        ("classifier: {deadline_ms: 50}\n" + ROUTE, "5: classifier.url: is required"),
        ("classifier: {url: tcp://c}\n" + ROUTE, "5: classifier.url: must begin with http:// or"),
        (
            "classifier: {url: http://k:s3cret@c}\n",
            "5: classifier.url: must not hold credentials: a classifier gets none",
        ),
        ("classifier: {url: http://c, deadline_ms: 0}\n", "5: classifier.deadline_ms: must be"),
        ("classifier: {url: http://c, deadline_ms: 1m}\n", "5: classifier.deadline_ms: must be"),
        ("classifier: {url: http://c, text_bytes: 8}\n", "5: classifier.text_bytes: must be"),
        ("classifier: {url: http://c, cache_entries: 0}\n", "5: classifier.cache_entries: must"),
    ],
)
def test_what_is_wrong_with_it(folder: Folder, text: str, problem: str) -> None:
    (told,) = folder.issues(FLEET + text)
    assert told.startswith(f"conf.yaml:{problem}")
    assert "s3cret" not in told


def test_one_that_is_never_asked_is_warned_of(folder: Folder) -> None:
    told = "conf.yaml:5: classifier: is never asked: no route has `label` under `match`"
    assert folder.warnings(FLEET + URL) == [told]


def test_one_that_is_the_proxy_itself_is_warned_of(folder: Folder) -> None:
    own = "classifier: {url: http://127.0.0.1:8080/classify}\n"
    told = "conf.yaml:5: classifier.url: is this proxy itself: listen.port is 8080"
    assert folder.warnings(FLEET + own + ROUTE) == [told]
