"""What clients and backends have written is no command to the terminal of who asks for it."""

import http.client
import json
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.proxy.commands.cli import main

HOSTILE = "a\x1b]0;title\x07\x9b2J\u202eb\u200d"
TENANT = {
    "name": "research",
    "models": [
        {
            "model": HOSTILE,
            "requests": 1,
            "prompt_tokens": 2,
            "cached_tokens": 0,
            "completion_tokens": 3,
        }
    ],
    "budgets": [],
    "refused": 0,
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the admin port says, as `status` and `content`."""
    said = SimpleNamespace(status=200, content=[])

    class Connection:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def request(self, *_: Any) -> None:
            pass

        def getresponse(self) -> SimpleNamespace:
            content = json.dumps(said.content).encode()
            return SimpleNamespace(status=said.status, read=lambda _: content)

        def close(self) -> None:
            pass

    monkeypatch.setattr(http.client, "HTTPConnection", Connection)
    return said


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_a_table_shows_no_command(
    answers: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.content = [TENANT]
    assert main(["usage"]) == 0
    shown = capsys.readouterr().out
    assert "a?]0;title??2J?b?" in shown
    assert is_harmless(shown)


def test_json_is_exact_and_shows_none_either(
    answers: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.content = [TENANT]
    assert main(["usage", "--json"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown) == [TENANT]
    assert is_harmless(shown)


def test_nor_does_an_error(answers: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    answers.status = 403
    answers.content = {"error": {"code": "forbidden", "message": HOSTILE}}
    assert main(["usage"]) == 1
    assert is_harmless(capsys.readouterr().err)
