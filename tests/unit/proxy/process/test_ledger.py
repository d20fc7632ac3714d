"""What tenants have used, as it survives a restart: read, written, merged and not lost."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.conf.settings import Settings
from penstock.proxy.data.budgets import Budgets
from penstock.proxy.process.state_files import FILE, Ledger
from penstock.proxy.telemetry.metrics import Metrics

DAY_S = 86_400.0


class Process:
    """One process: its budgets, its counts, and the file."""

    def __init__(self, folder: Path, wall_s: float = 0.0, **limits: int) -> None:
        self.wall_s = 1_000_000.0 + wall_s
        pool = {"name": "p", "backends": [{"name": "a", "url": "http://a"}]}
        tenant: dict[str, Any] = {"name": "t", "keys": [{"key": "k"}], "limits": limits}
        metrics = Metrics([])
        self.budgets = Budgets(metrics)
        self.budgets.follow(Settings.model_validate({"pools": [pool], "tenants": [tenant]}), 0.0)
        self.usage = metrics.usage
        self.ledger = Ledger(folder, self.budgets, self.usage, lambda: self.wall_s)
        self.ledger.open(0.0)

    def uses(self, tokens: int) -> None:
        self.budgets.tenants["t"].budget.take(1, tokens, 0.0)
        used = self.usage.of("t", "m")
        used.requests += 1
        used.prompt_tokens += tokens

    async def spends(self, tokens: int) -> None:
        self.uses(tokens)
        await self.ledger.write()

    @property
    def left(self) -> float:
        return self.budgets.tenants["t"].budget.tokens["tokens_per_day"].level(0.0)

    @property
    def counted(self) -> tuple[int, int]:
        (found,) = [used for tenant, _, used in self.usage.totals() if tenant == "t"]
        return found.requests, found.prompt_tokens


async def test_what_was_used_is_used_after_a_restart(tmp_path: Path) -> None:
    first = Process(tmp_path, tokens_per_day=1_000, requests_per_day=10)
    await first.spends(300)
    await first.spends(50)
    second = Process(tmp_path, tokens_per_day=1_000, requests_per_day=10)
    assert second.left == 650.0
    assert second.budgets.tenants["t"].budget.requests["requests_per_day"].level(0.0) == 8.0
    assert second.counted == (2, 350)


async def test_what_came_back_meanwhile_is_there(tmp_path: Path) -> None:
    first = Process(tmp_path, tokens_per_day=1_000)
    await first.spends(800)
    first.wall_s += DAY_S / 2
    await first.spends(100)
    assert Process(tmp_path, DAY_S / 2, tokens_per_day=1_000).left == 600.0
    assert Process(tmp_path, DAY_S * 0.75, tokens_per_day=1_000).left == 850.0
    assert Process(tmp_path, DAY_S * 5, tokens_per_day=1_000).left == 1_000.0


async def test_a_clock_that_went_back_gives_nothing_back(tmp_path: Path) -> None:
    first = Process(tmp_path, tokens_per_day=1_000)
    await first.spends(800)
    first.wall_s -= 10 * DAY_S
    await first.spends(100)
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT used FROM budgets").fetchall() == [(900.0,)]


async def test_two_processes_at_once_add_up(tmp_path: Path) -> None:
    one, other = (Process(tmp_path, tokens_per_day=1_000) for _ in range(2))
    for process, tokens in ((one, 100), (other, 200), (one, 50)):
        await process.spends(tokens)
    third = Process(tmp_path, tokens_per_day=1_000)
    assert third.left == 650.0
    assert third.counted == (3, 350)


async def test_what_is_given_back_is_written_too(tmp_path: Path) -> None:
    first = Process(tmp_path, tokens_per_day=1_000)
    await first.spends(600)
    first.budgets.tenants["t"].budget.take(0, -500, 0.0)
    await first.ledger.write()
    assert Process(tmp_path, tokens_per_day=1_000).left == 900.0


async def test_what_could_not_be_written_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Process(tmp_path, tokens_per_day=1_000)
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("ALTER TABLE budgets RENAME TO moved")
    await first.spends(100)
    await first.spends(100)
    assert caplog.text.count("is not written") == 1
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("ALTER TABLE moved RENAME TO budgets")
    await first.ledger.write()
    assert Process(tmp_path, tokens_per_day=1_000).left == 800.0


async def test_a_write_that_is_under_way_at_the_end_is_not_written_twice(tmp_path: Path) -> None:
    first = Process(tmp_path, tokens_per_day=1_000)
    first.uses(100)
    watching = asyncio.create_task(first.ledger.watch())
    await asyncio.sleep(0)
    first.ledger.stop()
    first.uses(50)
    await watching
    second = Process(tmp_path, tokens_per_day=1_000)
    assert second.left == 850.0
    assert second.counted == (2, 150)


def test_counters_begin_with_the_process(tmp_path: Path) -> None:
    assert not list(Process(tmp_path).usage.items())


async def test_nothing_new_is_no_write(tmp_path: Path) -> None:
    first = Process(tmp_path, tokens_per_day=1_000)
    await first.spends(100)
    (tmp_path / FILE).unlink()
    await first.ledger.write()
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("content", [b"no database" * 100, None])
def test_a_file_that_cannot_be_used_is_said(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        Process(tmp_path)
        with closing(sqlite3.connect(tmp_path / FILE)) as database:
            database.execute("PRAGMA user_version = 99")
    else:
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(OSError, match=r"state\.dir: .*penstock\.db cannot be used: "):
        Process(tmp_path)
    if content is not None:
        assert (tmp_path / FILE).read_bytes() == content


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    Process(tmp_path / "new")
    assert (tmp_path / "new" / FILE).stat().st_mode & 0o077 == 0
