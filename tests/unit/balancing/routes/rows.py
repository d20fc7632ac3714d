"""Reads the tables of rules and requests, and makes requests of their rows.

A table has its rules, then `---`, then a row for each request: what it is, and what is to be
decided by hand. A row without a rule ends in `-`. Where a split leaves it open, `or` stands
between the targets.
"""

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from penstock.balancing.ask import Ask
from penstock.balancing.routes.building import table_of
from penstock.balancing.routes.request import RouteRequest
from penstock.balancing.routes.table import RouteTable
from penstock.balancing.wants import needs_of
from penstock.conf import document
from penstock.conf.settings import Settings

TABLES: Final = Path(__file__).parent / "tables"
POOLS: Final = ("chat", "next", "small", "long", "vision")


def settings_of(routes: object) -> Settings:
    """Settings with these routes, five pools and two tenants."""
    return Settings.model_validate(
        {
            "pools": [
                {"name": name, "backends": [{"name": f"{name}-0", "url": f"http://{name}"}]}
                for name in POOLS
            ],
            "tenants": [
                {"name": name, "keys": [{"key": name * 4}]} for name in ("research", "sales")
            ],
            "classifier": {"url": "http://classifier"},
            "routes": routes,
        }
    )


def table(*routes: Mapping[str, object]) -> RouteTable:
    """A table of these rules, as they stand in a file."""
    return table_of(settings_of(list(routes)).routes)


def read(name: str) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """The rules of one table, and its rows."""
    rules, _, rows = (TABLES / name).read_text(encoding="utf-8").rpartition("---\n")
    pairs = [line.rpartition("|") for line in rows.splitlines()]
    tree: Any = document.read(rules, {}).tree
    return tree or [], [(row.strip(), wanted.strip()) for row, _, wanted in pairs]


def request(row: str, draw: int = 0) -> RouteRequest:
    """The request of a row. What it does not say is usual."""
    words = [word.partition("=") for word in shlex.split(row)]
    given = {name: value for name, _, value in words}
    headers = {
        name[2:].lower().encode(): value.encode()
        for name, value in given.items()
        if name.startswith("h:")
    }
    tenant, session = given.get("tenant", ""), given.get("session")
    ask = Ask(
        given.get("path", "/v1/chat/completions"),
        model=given.get("model"),
        prompt_tokens=int(given.get("tokens", "100")),
        stream="stream" in given,
        session=f"{tenant} {session}" if tenant and session else session,
        tenant=tenant,
        client=tenant or given.get("client", "10.0.0.1"),
    )
    at = datetime.fromisoformat(given.get("at", "2026-01-07T12:00:00")).replace(tzinfo=UTC)
    return RouteRequest(
        ask,
        headers.get,
        service_class=given.get("class", "standard"),
        user=given.get("user"),
        needs=needs_of(given["asks"].split(",")) if "asks" in given else 0,
        effort=given.get("effort"),
        label=given.get("label"),
        now_s=at.timestamp(),
        draw=draw,
    )
