"""Vercel's `ai` and LangChain on Node through aliases, a split and fall-backs.

Both come from npm's registry: some 30 s for the whole file, and more without a cache.
"""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.e2e.process import Serve, Simulate
from tests.e2e.program import run
from tests.e2e.raw_backend import RawBackend
from tests.e2e.request import ask
from tests.e2e.routed import NAMES, NEXT, STABLE, Routed, start

FOLDER: Final = Path(__file__).parent / "node"
ASKS: Final = 20  # four clients, five questions each
Told = dict[str, dict[str, Any]]


@pytest.fixture
async def routed(simulate: Simulate, serve: Serve) -> AsyncIterator[Routed]:
    failing = RawBackend()
    await failing.start()
    yield await start(simulate, serve, failing)
    await failing.stop()


async def installed(folder: Path) -> str:
    """Install the clients into an empty folder. Returns the program `node`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no node or no npm on this machine (Debian: apt-get install nodejs npm)")
    for name in ("package.json", "ask.mjs"):
        shutil.copy(FOLDER / name, folder)
    flags = ("--silent", "--no-audit", "--no-fund", "--no-package-lock")
    await run(npm, "install", *flags, folder=folder, within_s=220)
    return node


async def sessions(routed: Routed) -> list[str]:
    """A session of either version of the split."""
    found: dict[str, str] = {}
    for number in range(40):
        body = {"model": "gpt-split", "prompt": "x", "max_tokens": 1}
        got = await ask(routed.penstock, "/v1/completions", body, x_session_id=f"s{number}")
        found.setdefault(got.headers["x-penstock-model"], f"s{number}")
    return [found[STABLE], found[NEXT]]


def same(through: Told, direct: Told) -> None:
    """Each answer is what the backend itself gave: what the client makes of it, and its bytes."""
    assert len(through) == ASKS
    assert not {kind: told for kind, told in through.items() if "failed" in told}
    for kind, told in through.items():
        assert told["said"], kind
        assert told["said"] == direct[kind]["said"], kind
        assert told["bytes"] == direct[kind]["bytes"], kind


@pytest.mark.once
@pytest.mark.timeout(300)
async def test_clients_on_node(routed: Routed, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("node")
    node = await installed(folder)
    url = routed.penstock.url
    one, other = await sessions(routed)
    asked = [{"url": url, "model": name, "session": one} for name in NAMES]
    asked.append({"url": url, "model": "gpt-split", "session": other})
    served = {model for models in NAMES.values() for model in models}
    direct = [{"url": routed.servers[each].url, "model": each, "session": one} for each in served]
    arguments = orjson.dumps([*asked, *direct]).decode()
    lines = (await run(node, "ask.mjs", arguments, folder=folder, within_s=120)).splitlines()
    answers: list[Told] = [orjson.loads(line) for line in lines]
    of_model = dict(zip(served, answers[len(asked) :], strict=True))
    models = []
    for asking, through in zip(asked, answers, strict=False):
        (model,) = {told["served"] for told in through.values()}
        assert model in NAMES[asking["model"]]
        models.append(model)
        same(through, of_model[model])
    assert {models[1], models[-1]} == {STABLE, NEXT}
