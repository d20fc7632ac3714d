"""What tenants have used, in a file, so that it survives a restart.

It is written once a second, in a thread: a process that is killed forgets a second of it. What is
written are differences. So two processes may write to one file, as they do while one takes the
place of another.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import time
from typing import Final

from penstock.balancing.budgets.budget import Bucket
from penstock.proxy.data.budgets import Budgets
from penstock.proxy.telemetry.usage import TenantUsage, Used

logger = logging.getLogger(__name__)

FILE: Final = "penstock.db"
PERIOD_S: Final = 1.0
# Another process holds the file for milliseconds.
LOCKED_S: Final = 5.0
VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS budgets (tenant TEXT, budget TEXT, used REAL, at_s REAL,
    PRIMARY KEY (tenant, budget)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (tenant TEXT, model TEXT, requests INTEGER, prompt_tokens INTEGER,
    cached_tokens INTEGER, completion_tokens INTEGER,
    PRIMARY KEY (tenant, model)) WITHOUT ROWID;
"""
# What was used less what has come back since, and what is new.
_CHARGE: Final = """
INSERT INTO budgets VALUES (:tenant, :budget, :used, :now_s)
ON CONFLICT DO UPDATE SET at_s = :now_s,
    used = :used + max(0, budgets.used - max(0, :now_s - at_s) * :per_s)
"""
_COUNT: Final = """
INSERT INTO used VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens
"""

Counts = tuple[int, int, int, int]


class Ledger:
    """The file in one folder, and what of it is written already."""

    def __init__(
        self, folder: Path, budgets: Budgets, usage: TenantUsage, wall: Callable[[], float] = time
    ) -> None:
        self._path = folder / FILE
        self._budgets = budgets
        self._usage = usage
        self._wall = wall
        self._charged: dict[Bucket, float] = {}  # of `taken`, what is written
        self._counted: dict[tuple[str, str], Counts] = {}
        self._failing = False
        self._stopping = asyncio.Event()

    def open(self, now_s: float) -> None:
        """Read what was used before. Raises OSError if the file cannot be used."""
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.touch(mode=0o600)
            with closing(self._connect()) as database:
                self._prepare(database)
                self._load(database, now_s)
        except (sqlite3.Error, OSError) as error:
            raise OSError(0, f"state.dir: {self._path} cannot be used: {error}") from error

    async def watch(self) -> None:
        """Write now and then until `stop`, and then once more.

        It is not cancelled: its thread would go on, and nobody would know what it has written.
        """
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), PERIOD_S)
            await self.write()

    def stop(self) -> None:
        """No more requests come."""
        self._stopping.set()

    async def write(self) -> None:
        """Write what is new. After a failure it stays new."""
        charges, counts = self._new_charges(), self._new_counts()
        if not charges and not counts:
            return
        try:
            await asyncio.to_thread(self._write, list(charges.values()), counts)
        except (sqlite3.Error, OSError) as error:
            if not self._failing:
                logger.warning("what tenants use is not written error=%s", error)
            self._failing = True
            return
        if self._failing:
            logger.info("what tenants use is written again")
        self._failing = False
        for bucket, row in charges.items():
            self._charged[bucket] = self._charged.get(bucket, 0.0) + float(row["used"])
        for tenant, model, *new in counts:
            before = self._counted.get((tenant, model), (0, 0, 0, 0))
            self._counted[tenant, model] = _added(before, new)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=LOCKED_S)

    def _prepare(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise OSError("a newer penstock wrote it")
        database.execute("PRAGMA journal_mode = WAL")
        if version == 0:
            database.executescript(f"{_TABLES} PRAGMA user_version = {VERSION};")

    def _load(self, database: sqlite3.Connection, now_s: float) -> None:
        wall_s = self._wall()
        rows = database.execute("SELECT tenant, budget, used, at_s FROM budgets").fetchall()
        stored = {(tenant, name): (used, at_s) for tenant, name, used, at_s in rows}
        for tenant, name, bucket in self._buckets():
            used, at_s = stored.get((tenant, name), (0.0, wall_s))
            back = max(0.0, wall_s - at_s) * bucket.limit / bucket.period_s
            bucket.resume(max(0.0, used - back), now_s)
        for tenant, model, *numbers in database.execute("SELECT * FROM used"):
            self._usage.before[tenant, model] = used = Used()
            used.requests, used.prompt_tokens, used.cached_tokens, used.completion_tokens = numbers

    def _buckets(self) -> list[tuple[str, str, Bucket]]:
        return [
            (tenant, name, bucket)
            for tenant, found in self._budgets.tenants.items()
            for name, bucket in (found.budget.requests | found.budget.tokens).items()
        ]

    def _new_charges(self) -> dict[Bucket, dict[str, str | float]]:
        wall_s = self._wall()
        rows: dict[Bucket, dict[str, str | float]] = {}
        buckets = self._buckets()
        for tenant, name, bucket in buckets:
            used = bucket.taken - self._charged.get(bucket, 0.0)
            if used:
                per_s = bucket.limit / bucket.period_s
                row: dict[str, str | float] = {"tenant": tenant, "budget": name, "used": used}
                rows[bucket] = row | {"now_s": wall_s, "per_s": per_s}
        known = {bucket for _, _, bucket in buckets}
        self._charged = {each: taken for each, taken in self._charged.items() if each in known}
        return rows

    def _new_counts(self) -> list[tuple[str, str, int, int, int, int]]:
        rows = []
        for tenant, model, used in self._usage.items():
            now = (used.requests, used.prompt_tokens, used.cached_tokens, used.completion_tokens)
            before = self._counted.get((tenant, model), (0, 0, 0, 0))
            if now != before:
                new = [each - old for each, old in zip(now, before, strict=True)]
                rows.append((tenant, model, new[0], new[1], new[2], new[3]))
        return rows

    def _write(
        self,
        charges: list[dict[str, str | float]],
        counts: list[tuple[str, str, int, int, int, int]],
    ) -> None:
        with closing(self._connect()) as database:
            database.execute("PRAGMA synchronous = NORMAL")
            with database:
                database.executemany(_CHARGE, charges)
                database.executemany(_COUNT, counts)


def _added(before: Counts, new: list[int]) -> Counts:
    return (before[0] + new[0], before[1] + new[1], before[2] + new[2], before[3] + new[3])
