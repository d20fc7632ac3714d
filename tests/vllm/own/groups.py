"""Which of vLLM's own tests are run, and what kind of server each of them needs."""

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

_ENTRYPOINTS: Final = "tests/entrypoints/"
_MODEL_NAMES: Final = re.compile(r'"([A-Za-z][\w-]*/[\w.-]+|\w+-lora)"')
_SERVED_NAME: Final = re.compile(r'"--served-model-name",\s*"([^"]+)"')


class Group(NamedTuple):
    """Tests that one server serves: files and folders below tests/entrypoints, its flags."""

    name: str
    tests: tuple[str, ...]
    flags: tuple[str, ...]

    def paths(self) -> list[str]:
        return [_ENTRYPOINTS + test for test in self.tests]

    def models(self, folder: Path) -> list[str]:
        """Every model that the tests name: the server takes all of them for its own."""
        text = "".join(file.read_text() for path in self.paths() for file in _files(folder / path))
        return sorted({*_MODEL_NAMES.findall(text), *_SERVED_NAME.findall(text)})


def write_generation_config(folder: Path, vocabulary: int) -> None:
    """Let a model with random weights end its answers, after a hundred tokens or so.

    By itself it ends none, and many tests set no limit.
    """
    ends = [2, *range(100, vocabulary, 100)]
    config = {"eos_token_id": ends, "max_new_tokens": 600}
    (folder / "generation_config.json").write_text(json.dumps(config))


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


GROUPS: Final = (
    Group(
        "generate",
        (
            "openai/chat_completion",
            "openai/completion",
            "openai/responses",
            "openai/models",
            "openai/test_return_tokens_as_ids.py",
            "openai/test_return_token_ids.py",
            "openai/test_chunked_prompt.py",
            "anthropic/test_messages.py",
            "generate/generative_scoring/test_generative_scoring_e2e.py",
            "serve/tokenize",
        ),
        (
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--enable-tokenizer-info-endpoint", "--max-logprobs", "-1"),
        ),
    ),
    Group(
        "usage unasked",
        ("openai/chat_completion/test_enable_force_include_usage.py",),
        ("--enable-force-include-usage",),
    ),
    Group(
        "embed",
        ("pooling/embed", "pooling/basic", "pooling/scoring/test_bi_encoder_online.py"),
        ("--runner", "pooling", "--convert", "embed"),
    ),
    Group(
        "classify",
        ("pooling/classify", "pooling/scoring/test_cross_encoder_online.py", "pooling/reward"),
        ("--runner", "pooling", "--convert", "classify"),
    ),
)
