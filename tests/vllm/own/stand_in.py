"""A pytest plugin for vLLM's own tests: the server that they start is one that runs already.

Run by the interpreter of the vLLM environment. OWN_URL is where the server is, OWN_MODEL the
folder of the model that stands in for whatever model a test names, OWN_OUTCOMES the file that
gets a line of JSON for each test: its name, "passed" or not, and why not.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import anthropic
import openai
import pytest

_URL: Final = os.environ["OWN_URL"]
_MODEL: Final = os.environ["OWN_MODEL"]
_OUTCOMES: Final = Path(os.environ["OWN_OUTCOMES"])
# A test speaks to a server by one of these, or by a fixture that is named after them.
_SPEAKERS: Final = ("server", "client")
_WITHIN_S: Final = 30.0


class RemoteOpenAIServer:
    """What vLLM's class of this name offers, without a process behind it."""

    DUMMY_API_KEY = "token-abc123"
    uds = None

    def __init__(self, model: str, *arguments: object, **options: object) -> None:
        parts = urlsplit(_URL)
        self.model = model
        self.host, self.port = parts.hostname, parts.port
        self.url_root = _URL

    def __enter__(self) -> "RemoteOpenAIServer":
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join((_URL, *(part.strip("/") for part in parts if part)))

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url_for("v1"), **self._with(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), **self._with(options))

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=_URL, **self._with(options))

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=_URL, **self._with(options))

    def _with(self, options: dict[str, Any]) -> dict[str, Any]:
        own = {"api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": _WITHIN_S}
        return own | options


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put our names where the tests import theirs from."""
    utils: Any = ModuleType("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer
    utils.ROCM_EXTRA_ARGS = []
    utils.VLLM_PATH = Path(__file__).parent
    sys.modules["tests.utils"] = utils
    # Their models' tokenizers are not here; that of the model behind the server is.
    transformers = sys.modules.get("transformers") or __import__("transformers")
    tokenizers: Any = __import__("vllm.tokenizers", fromlist=["get_tokenizer"])
    of_folder, of_vllm = transformers.AutoTokenizer.from_pretrained, tokenizers.get_tokenizer
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: of_folder(_MODEL)
    tokenizers.get_tokenizer = lambda *_, **__: of_vllm(_MODEL)
    # Nor are adapters, which only the command of a server that is not started would name.
    hub: Any = __import__("huggingface_hub")
    hub.HfApi.snapshot_download = lambda *_, **__: _MODEL


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only tests that speak to a server."""
    kept = [item for item in items if _speaks(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _speaks(item)])
    items[:] = kept


def _speaks(item: pytest.Item) -> bool:
    names: list[str] = getattr(item, "fixturenames", [])
    # One is named chat_client_with_force_include_usage.
    return any(name.endswith(_SPEAKERS) or "_client_with_" in name for name in names)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line a test, and one more where leaving it failed."""
    if report.when == "call" or report.outcome != "passed":
        why = str(report.longrepr)[-400:] if report.failed else ""
        line = {"test": report.nodeid, "outcome": report.outcome, "why": why}
        with _OUTCOMES.open("a") as file:
            file.write(json.dumps(line) + "\n")
