"""A real Prometheus, in which a minute of alert rules is a second.

It scrapes and evaluates each second. Every window and every `for` of the rules is divided by 60,
and so is the time for which it looks back. Nothing else of them is changed.
"""

import asyncio
import contextlib
import re
import shutil
from collections.abc import Callable, Iterable
from math import isfinite
from pathlib import Path
from time import time
from typing import Any, Final, Self

import aiohttp
import orjson
import pytest
import yaml

from penstock.bench.processes import free_port

SHORTER: Final = 60
STARTS_WITHIN_S: Final = 20.0
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CONFIGURATION: Final = {
    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
    "rule_files": ["rules.yml"],
    "scrape_configs": [
        {
            "job_name": "penstock",
            "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}],
        }
    ],
}

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus (Debian: prometheus)"
)

Alert = dict[str, Any]


def shortened(rules: str) -> str:
    """The rules, with a second for each minute."""
    groups = yaml.safe_load(rules)
    for rule in (rule for group in groups["groups"] for rule in group["rules"]):
        rule["expr"] = re.sub(r"\[(\w+)\]", lambda match: f"[{_short(match[1])}]", rule["expr"])
        if "for" in rule:
            rule["for"] = _short(rule["for"])
    return yaml.safe_dump(groups)


def _short(duration: str) -> str:
    return f"{int(duration[:-1]) * _UNITS_MS[duration[-1]] // SHORTER}ms"


class Prometheus:
    """`async with Prometheus(folder, rules) as prometheus:` - it knows no target at first."""

    def __init__(self, folder: Path, rules: str = "groups: []") -> None:
        """`rules`: what `penstock alerts` prints, or nothing."""
        self._folder = folder
        self._url = f"http://127.0.0.1:{free_port()}"
        (folder / "rules.yml").write_text(shortened(rules))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_CONFIGURATION))
        self.scrapes()

    def scrapes(self, *ports: int) -> None:
        """Its targets from now on: ports on loopback."""
        targets = [{"targets": [f"127.0.0.1:{port}" for port in ports]}] if ports else []
        new = self._folder / "targets.new"  # a half-written file would be read
        new.write_bytes(orjson.dumps(targets))
        new.replace(self._folder / "targets.json")

    async def __aenter__(self) -> Self:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                "prometheus",
                f"--config.file={self._folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._folder / 'prometheus'}",
                f"--web.listen-address={self._url.removeprefix('http://')}",
                f"--query.lookback-delta={300 // SHORTER}s",
                stdout=log,
                stderr=log,
            )
        self._session = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                while not await self._ready():
                    await asyncio.sleep(0.05)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._end()

    async def alerts(self) -> list[Alert]:
        """Those that are pending or fire. Any other one is inactive."""
        async with self._session.get(f"{self._url}/api/v1/alerts") as answer:
            told = orjson.loads(await answer.read())
        alerts: list[Alert] = told["data"]["alerts"]
        return alerts

    async def until(
        self, holds: Callable[[list[Alert]], bool], within_s: float, what: str
    ) -> list[Alert]:
        """Wait until the alerts satisfy a condition; those that did."""
        alerts: list[Alert] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not holds(alerts := await self.alerts()):
                    await asyncio.sleep(0.2)
                return alerts
        told = [(each["labels"], each["state"]) for each in alerts]
        log = (self._folder / "prometheus.log").read_text()[-2_000:]
        raise AssertionError(f"not within {within_s:g} s: {what}; {told}\n{log}")

    async def until_firing(self, *names: str, within_s: float) -> dict[str, Alert]:
        """Wait until all of these fire; one of each."""
        alerts = await self.until(
            lambda alerts: set(names) <= names_of(alerts, "firing"), within_s, f"{names} fire"
        )
        return {each["labels"]["alertname"]: each for each in alerts if each["state"] == "firing"}

    async def until_inactive(self, *names: str, within_s: float) -> None:
        """Wait until none of these is pending or fires."""
        await self.until(
            lambda alerts: not set(names) & names_of(alerts), within_s, f"{names} are inactive"
        )

    async def samples(self, query: str) -> int:
        """How many samples a query finds now."""
        async with self._session.get(
            f"{self._url}/api/v1/query", params={"query": query}
        ) as answer:
            return len(orjson.loads(await answer.read())["data"]["result"])

    async def points(self, query: str, span_s: float) -> int:
        """How many finite numbers a query finds at the seconds of this time until now.

        Raises AssertionError with Prometheus' own words if it does not take the query.
        """
        params = {"query": query, "start": time() - span_s, "end": time(), "step": 1}
        async with self._session.post(f"{self._url}/api/v1/query_range", data=params) as answer:
            told = orjson.loads(await answer.read())
        assert told["status"] == "success", f"{told['error']}: {query}"
        values = [value for series in told["data"]["result"] for _, value in series["values"]]
        return sum(isfinite(float(value)) for value in values)

    async def _ready(self) -> bool:
        assert self._process.returncode is None, (self._folder / "prometheus.log").read_text()
        try:
            async with self._session.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def _end(self) -> None:
        await self._session.close()
        if self._process.returncode is None:
            self._process.kill()  # what it stored is of no use
        await self._process.wait()


def names_of(alerts: Iterable[Alert], state: str | None = None) -> set[str]:
    """The names of those in this state, or in any."""
    return {each["labels"]["alertname"] for each in alerts if state in (None, each["state"])}
