"""Files that outlast a restart: the newest state is written last, and no failure loses it."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.proxy.process.state_files import PERIOD_S, RETRY_MAX_S, JsonFile


class Canaries:
    """The newest state, and whether it is kept."""

    def __init__(self, **state: object) -> None:
        self.state: dict[str, object] = state
        self.changed = True

    def move(self, **state: object) -> None:
        self.state, self.changed = state, True

    def to_state(self) -> dict[str, object]:
        return self.state

    def resume(self, known: dict[str, object]) -> None:
        self.state = known


def file_of(folder: Path, canaries: Canaries) -> JsonFile:
    return JsonFile(folder, "canaries", canaries)


def kept(folder: Path) -> Any:
    return orjson.loads((folder / "canaries.json").read_bytes())


async def test_what_came_while_an_older_state_was_written_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, free = threading.Event(), threading.Event()
    threads: list[int] = []
    really_open: Callable[..., int] = os.open

    def slow_open(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".new"):
            threads.append(threading.get_ident())
            entered.set()
            free.wait(10.0)
        return really_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", slow_open)
    canaries = Canaries(stage="running")
    file = file_of(tmp_path, canaries)
    watching = asyncio.create_task(file.watch())
    await asyncio.to_thread(entered.wait, 10.0)
    canaries.move(stage="rolled_back")
    file.stop()
    await asyncio.sleep(0)
    assert not watching.done()
    free.set()
    await watching
    assert kept(tmp_path) == {"stage": "rolled_back"}
    assert threading.get_ident() not in threads


async def test_a_state_that_was_not_written_is_written_soon(tmp_path: Path) -> None:
    canaries, folder = Canaries(stage="rolled_back"), tmp_path / "not yet" / "state"
    file = file_of(folder, canaries)
    waits = []
    for _ in range(8):
        await file.write()
        assert canaries.changed
        waits.append(file.wait_s)
    assert waits == [PERIOD_S * 2**n for n in range(6)] + [RETRY_MAX_S] * 2
    folder.parent.mkdir()
    await file.write()
    assert kept(folder) == {"stage": "rolled_back"}
    assert not canaries.changed
    assert file.wait_s == PERIOD_S
