"""What stands at `/` of the admin port is what the port has, and the page tells the same."""

import inspect
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from penstock.proxy.admin import answers, explanation, guard, server
from penstock.proxy.admin.page import entrance, events
from penstock.proxy.admin.server import INDEX, Admin
from penstock.proxy.errors.client import BodyTooLarge, ContextLengthExceeded
from penstock.proxy.errors.own import Draining, Overloaded

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "operations.md").read_text()


class _Any:
    """Stands for whatever is not asked before a request comes."""

    def __getattr__(self, name: str) -> Any:
        return "localhost" if name == "host" else _Any()


def told() -> set[tuple[str, str]]:
    return set(re.findall(r"^(GET|POST|DELETE) +(/\S*)", INDEX, re.MULTILINE))


def test_every_route_is_told() -> None:
    unused = cast("Any", _Any())
    routes = set()
    admin = Admin(*[unused] * 8)
    for route in admin.application().router.routes():
        assert route.resource is not None
        # The page's own files belong to /ui.
        if route.method != "HEAD" and route.resource.canonical != "/ui/{file}":
            path = route.resource.canonical
            routes.add((route.method, path.replace("{name}", "NAME").replace("{id}", "ID")))
    states = {(method, path.replace("{state}", "drain")) for method, path in routes}
    assert states - {("GET", "/")} == told() - {("POST", "/api/v1/backends/NAME/maint")}


def test_every_path_is_in_the_page() -> None:
    rows = set(re.findall(r"^\| `(GET|POST|DELETE) (/\S*)` \|", PAGE, re.MULTILINE))
    ready = ("POST", "/api/v1/backends/NAME/ready")
    assert rows == told() | {("GET", "/"), ready}


TOLD = (Draining, BodyTooLarge, Overloaded, ContextLengthExceeded)


def test_every_error_is_in_the_page() -> None:
    """With its status, as the source answers it."""
    modules = (server, explanation, answers, guard, entrance, events)
    source = "".join(inspect.getsource(each) for each in modules)
    given = set(re.findall(r"error_(?:answer|of)\(\s*(\d+),\s*\"(\w+)\"", source))
    given |= {
        (str(HTTPStatus[status].value), code)
        for status, code in re.findall(r"Refused\(HTTPStatus\.(\w+), \"(\w+)\"", source)
    }
    given |= {(str(each.status), each.code) for each in TOLD}
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert {(status, code) for code, status in rows} == given
