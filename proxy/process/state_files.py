"""What survives a restart, in files of `state.dir`: what tenants have used, where canaries stand,
and what operators have ordered.

They are written once a second, in a thread: a process that is killed forgets a second.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from operator import sub
from pathlib import Path
from time import monotonic, time
from typing import Any, Final, Protocol

import orjson

from penstock.balancing.budget import Bucket
from penstock.proxy.data.budgets import Budgets
from penstock.proxy.telemetry.usage import TenantUsage, Used

logger = logging.getLogger(__name__)

PERIOD_S: Final = 1.0


class StateFile:
    """One file, written by one thread at a time. `what` it keeps, with its verb."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._failing = False
        self._stopping = asyncio.Event()
        self.wait_s = PERIOD_S  # until the next look

    async def watch(self) -> None:
        """Write now and then until `stop`, and then once more.

        It is not cancelled: its thread would go on, and might put an older state in place.
        """
        stopping = False
        while not stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.wait_s)
            stopping = self._stopping.is_set()
            if stopping or self._is_due():
                await self.write()

    def stop(self) -> None:
        """Nothing changes any more."""
        self._stopping.set()

    def _is_due(self) -> bool:
        return True

    async def write(self) -> None:
        """Write what is new. After a failure it stays new."""
        raise NotImplementedError

    def _wrote(self, error: Exception | None) -> None:
        """Log the first failure, and its end."""
        if error is not None and not self._failing:
            logger.warning("%s not written error=%s", self._what, error)
        elif error is None and self._failing:
            logger.info("%s written again", self._what)
        self._failing = error is not None


FILE: Final = "penstock.db"
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
_NONE: Final = (0, 0, 0, 0)


class Ledger(StateFile):
    """What tenants have used, and what of it is written already.

    What is written are differences. So two processes may write to one file, as they do while one
    takes the place of another.
    """

    def __init__(
        self, folder: Path, budgets: Budgets, usage: TenantUsage, wall: Callable[[], float] = time
    ) -> None:
        super().__init__(folder / FILE, "what tenants use is")
        self._budgets = budgets
        self._usage = usage
        self._wall = wall
        self._charged: dict[Bucket, float] = {}  # of `taken`, what is written
        self._counted: dict[tuple[str, str], Counts] = {}

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

    async def write(self) -> None:
        charges, counts = self._new_charges(), self._new_counts()
        if not charges and not counts:
            return
        try:
            await asyncio.to_thread(self._write, list(charges.values()), self._rows(counts))
        except (sqlite3.Error, OSError) as error:
            self._wrote(error)
            return
        self._wrote(None)
        for bucket, row in charges.items():
            self._charged[bucket] = self._charged.get(bucket, 0.0) + float(row["used"])
        self._counted |= counts

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

    def _new_counts(self) -> dict[tuple[str, str], Counts]:
        """The totals that are not written."""
        found: dict[tuple[str, str], Counts] = {}
        for tenant, model, used in self._usage.items():
            now = (used.requests, used.prompt_tokens, used.cached_tokens, used.completion_tokens)
            if now != self._counted.get((tenant, model), _NONE):
                found[tenant, model] = now
        return found

    def _rows(self, counts: dict[tuple[str, str], Counts]) -> list[tuple[str | int, ...]]:
        """What each total has grown by."""
        return [
            (*key, *map(sub, now, self._counted.get(key, _NONE))) for key, now in counts.items()
        ]

    def _write(
        self,
        charges: list[dict[str, str | float]],
        counts: list[tuple[str | int, ...]],
    ) -> None:
        with closing(self._connect()) as database:
            database.execute("PRAGMA synchronous = NORMAL")
            with database:
                database.executemany(_CHARGE, charges)
                database.executemany(_COUNT, counts)


MINUTE_S: Final = 60.0
# After a failed write. The time begins at PERIOD_S and doubles.
RETRY_MAX_S: Final = 60.0


class Kept(Protocol):
    """What is kept as JSON. `changed`: it should be written soon."""

    changed: bool

    def to_state(self) -> dict[str, Any]: ...

    def resume(self, known: dict[str, Any]) -> None: ...


class JsonFile(StateFile):
    """One thing, by its name: it is written after each change, and once a minute.

    The newest state is the last one written. A write that failed is tried again soon. The file is
    replaced as a whole: whoever is killed leaves the old one.
    """

    def __init__(self, folder: Path, name: str, kept: Kept) -> None:
        super().__init__(folder / f"{name}.json", f"{name}.json is")
        self._kept = kept
        self._last = b"{}"
        self._written_s = monotonic()

    def read(self) -> None:
        """Tell the state of before. A file that cannot be read counts as none."""
        try:
            self._last = self._path.read_bytes()
            known = orjson.loads(self._last)
            self._kept.resume(known if isinstance(known, dict) else {})
        except FileNotFoundError:
            return
        except (OSError, orjson.JSONDecodeError) as error:
            logger.warning("%s begins anew, it cannot be read: %s", self._path, error)

    def _is_due(self) -> bool:
        return self._kept.changed or monotonic() - self._written_s >= MINUTE_S

    async def write(self) -> None:
        self._kept.changed, self._written_s = False, monotonic()
        try:
            await asyncio.to_thread(self._replace, orjson.dumps(self._kept.to_state()))
        except OSError as error:
            self._kept.changed = True
            self.wait_s = min(2 * self.wait_s, RETRY_MAX_S) if self._failing else PERIOD_S
            self._wrote(error)
            return
        self.wait_s = PERIOD_S
        self._wrote(None)

    def _replace(self, state: bytes) -> None:
        """Put a new file in place. Raises OSError."""
        if state == self._last:
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        new = self._path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        self._last = state
