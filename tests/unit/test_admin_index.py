"""What stands at `/` of the admin port is what the port has, and README tells the same."""

import re
from pathlib import Path
from typing import Any, cast

from proxy.admin import Admin
from proxy.admin_index import INDEX

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


class _Any:
    """Stands for whatever is not asked before a request comes."""

    def __getattr__(self, name: str) -> Any:
        return "localhost" if name == "host" else 1 if name == "body_bytes" else _Any()


def told() -> set[tuple[str, str]]:
    return set(re.findall(r"^(GET|POST) +(/\S*)", INDEX, re.MULTILINE))


def test_every_route_is_told() -> None:
    unused = cast("Any", _Any())
    routes = set()
    for route in Admin(unused, unused, unused, unused, unused).application().router.routes():
        assert route.resource is not None
        if route.method != "HEAD":
            routes.add((route.method, route.resource.canonical.replace("{name}", "NAME")))
    states = {(method, path.replace("{state}", "drain")) for method, path in routes}
    assert states - {("GET", "/")} == told() - {("POST", "/api/v1/backends/NAME/maint")}


def test_every_path_is_in_the_readme() -> None:
    for _, path in told():
        assert path in README.replace("`…/maint`", "/api/v1/backends/NAME/maint"), path
