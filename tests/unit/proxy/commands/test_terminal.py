"""What clients and backends have written is no command to the terminal of who asks for it."""

import http.client
import json
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.proxy.commands.cli import main

HOSTILE = "a\x1b]0;title\x07\x9b2J\u202eb\u200d"
MODEL = {"model": HOSTILE, "requests": 1, "prompt_tokens": 2, "cached_tokens": 0}
TENANT = {
    **{"name": "research", "budgets": [], "refused": 0},
    "models": [MODEL | {"completion_tokens": 3}],
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


@pytest.mark.parametrize(
    ("command", "status", "content"),
    [
        (["usage"], 200, [TENANT]),
        (["usage", "--json"], 200, [TENANT]),
        (["usage"], 403, {"error": {"code": "forbidden", "message": HOSTILE}}),
    ],
)
def test_no_command_of_others_reaches_the_terminal(
    command: list[str],
    status: int,
    content: Any,
    answers: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers.status, answers.content = status, content
    assert main(command) == int(status != 200)
    shown = "".join(capsys.readouterr())
    assert all(line.isprintable() for line in shown.split("\n"))
    if "--json" in command:
        assert json.loads(shown) == content  # exact all the same
    else:
        assert "a?]0;title??2J?b?" in shown
