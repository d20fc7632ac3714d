"""Writes the Grafana boards that `penstock boards` hands out. `make references` calls it.

`--check` writes nothing: it fails if a board in the repository is not what the code makes.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

import orjson
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from docs.boards.engines import engines
from docs.boards.overview import overview
from docs.boards.tenants import tenants
from penstock.proxy.commands.alerts import FOLDER

_BOARDS: Final = {"overview": overview, "engines": engines, "tenants": tenants}


def boards() -> Iterator[tuple[str, bytes]]:
    """The name of each file and what is in it."""
    for name, made in _BOARDS.items():
        built = made().build()
        for number, panel in enumerate(built.panels or (), start=1):
            panel.id_val = number
        told: dict[str, Any] = orjson.loads(JSONEncoder().encode(built))
        sorted_keys = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
        yield f"{name}.json", orjson.dumps(told, option=sorted_keys) + b"\n"


def main(arguments: list[str]) -> int:
    """Write or check all boards; returns the exit status."""
    wrong = 0
    for name, text in boards():
        path = FOLDER / name
        if arguments == ["--check"]:
            if not path.exists() or path.read_bytes() != text:
                print(f"proxy/boards/{name} is not what the code makes: call make references")
                wrong = 1
        else:
            FOLDER.mkdir(exist_ok=True)
            path.write_bytes(text)
            print(f"wrote proxy/boards/{name}", file=sys.stderr)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
