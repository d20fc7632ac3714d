"""Writes the two reference pages: the configuration's from the settings, the metrics' from the
families. `make references` calls it as `python -m docs.references`.

What a key or a metric means is written beside it in the code. Here it only gets a place in a table.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from docs.label_table import LABELS, REASONS
from penstock.conf.kinds import SHAPES
from penstock.conf.settings import Settings
from penstock.conf.units import unit_of
from penstock.proxy.reload.reload import FIXED
from penstock.proxy.telemetry.family_table import FAMILIES

Schema = Mapping[str, Any]

FOLDER: Final = Path(__file__).parent
NO_EDITS: Final = (
    "<!-- Written by `make references`. Edit the descriptions in the code instead. -->"
)
_UNITS: Final = {
    "s": "duration in seconds",
    "ms": "duration in milliseconds",
    "bytes": "size in bytes",
}

CONFIGURATION: Final = f"""\
# Configuration reference

{NO_EDITS}

Every key of the configuration file. Only `pools` is required. `penstock check FILE` reports every
error with its line. `penstock config show FILE` prints the values in use and where each comes from.

- **Precedence:** command-line flags, then environment variables, then the file, then the defaults.
- **Environment variables:** a number in the name of a variable is a position in a list and starts
  with 0. `PENSTOCK_POOLS__0__POLICY` sets the policy of the first pool. A variable that stands for
  a list or a mapping holds YAML: `PENSTOCK_PATHS='["GET /tokenizer_info"]'`.
- **Units:** durations and sizes take units: `500ms`, `2s`, `5m`, `32MiB`.
- **References:** `${{NAME}}` and `${{NAME:-default}}` in the file are taken from the environment.
- **Unknown keys** are errors. Top-level keys that begin with `x-` are free for YAML anchors.
- **Reload:** SIGHUP or `POST /api/v1/reload` reads everything again. Keys with *yes* under
  *Restart* keep their value until the process is restarted. All other keys apply to requests that
  begin after the reload.
"""

METRICS: Final = f"""\
# Metrics reference

{NO_EDITS}

The admin port serves these metrics at `/metrics`, in the text format of Prometheus:

```sh
curl -s http://127.0.0.1:9321/metrics | grep ^penstock_
```

A counter is a number since the start of the process. Use `rate()` on it. A histogram has three
series: `_bucket`, `_sum` and `_count`. Most series with labels appear when they first have
something to count. Histograms are classic ones, because the library that writes them
(prometheus_client 0.26) has no protobuf, in which alone Prometheus reads native ones.
`penstock boards` writes [Grafana boards](operations.md#grafana-boards) that show them.

`penstock_cost_per_1k_tokens` is 1,000 x `cost_per_hour` x backends x hours / tokens, over the last
10 minutes. A backend counts as long as the configuration names it, also when it is idle, drained or
broken.
"""


def configuration() -> str:
    """The page of all keys, one table for each section."""
    schema = Settings.model_json_schema()
    parts = [CONFIGURATION]
    for path, section in _sections(schema, (), schema["$defs"]):
        title = _spelled(path) or "Top level"
        about = section["description"] if path else "Each mapping has a table of its own below."
        rows = [
            "| Key | Type | Default | Bounds | What it is for | Restart | Environment variable |",
            "|---|---|---|---|---|---|---|",
            *(_row((*path, key), key in section.get("required", ()), node, schema["$defs"])
              for key, node in section["properties"].items()),
        ]  # fmt: skip
        parts.append(f"## {title}\n\n{about}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _sections(
    section: Schema, path: tuple[str, ...], definitions: Schema
) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Each mapping of the configuration with its path, outer ones first."""
    yield path, section
    for key, node in section["properties"].items():
        inner = _mapping_of(node, definitions)
        if inner is not None:
            listed = (*path, key, "0") if _is_list(node) else (*path, key)
            yield from _sections(inner, listed, definitions)


def _mapping_of(node: Schema, definitions: Schema) -> Schema | None:
    """The mapping that a key takes, itself or in a list; None for a plain value."""
    for option in (node, *node.get("anyOf", ()), node.get("items", {})):
        if "$ref" in option:
            found: Schema = definitions[option["$ref"].rpartition("/")[2]]
            return found
    return None


def described(node: Schema, definitions: Schema) -> str:
    """What a key is for: its own words, else those of the mapping that it takes."""
    inner = _mapping_of(node, definitions) or {}
    return str(node.get("description") or inner.get("description") or "")


def _row(path: tuple[str, ...], required: bool, node: Schema, definitions: Schema) -> str:
    name = path[-1]
    options = _options(node)
    kinds = " or ".join(_kind(option, name) for option in options)
    if len(options) < len(node.get("anyOf", [node])):
        kinds = kinds.replace("list of", "one or a list of", 1)
    cells = (
        f"`{_spelled(path)}`",
        kinds,
        "**required**" if required else _default(node, name),
        _bounds(node, name),
        described(node, definitions),
        "yes" if path in FIXED else "no",
        f"`PENSTOCK_{'__'.join(path).upper()}`",
    )
    return _line(cells)


def _options(node: Schema) -> list[Schema]:
    """What a key takes, without what may stand for a list of one."""
    options: list[Schema] = node.get("anyOf", [node])
    single = [option["items"] for option in options if _is_list(option)]
    return [option for option in options if option not in single]


def _kind(node: Schema, name: str) -> str:
    if "enum" in node:
        return "one of " + ", ".join(f"`{value}`" for value in node["enum"])
    if "$ref" in node or _is_mapping(node):
        return "mapping"
    if _is_list(node):
        item = _kind(node["items"], name)
        if "enum" in node["items"]:
            return f"list of {item.removeprefix('one of ')}"
        return f"list of {item}s"
    if node["type"] == "null":
        return "`null`"
    if node["type"] == "boolean":
        return "`true` or `false`"
    unit = unit_of(name)
    if unit is None:
        return {"string": "text", "integer": "whole number"}.get(node["type"], str(node["type"]))
    return _UNITS[unit]


def _bounds(node: Schema, name: str) -> str:
    """The bounds in words; empty where there are none beyond the kind."""
    told = []
    for option in _options(node):
        if "minimum" in option:
            told.append(f"{_number(option['minimum'], name)} to {_number(option['maximum'], name)}")
        if "exclusiveMinimum" in option:
            least, most = option["exclusiveMinimum"], option["maximum"]
            told.append(f"above {_number(least, name)}, to {_number(most, name)}")
        if "pattern" in option:
            told.append(SHAPES[option["pattern"]].removeprefix("must be "))
        if "maxItems" in option:
            told.append(f"{option.get('minItems', 0)} to {option['maxItems']} entries")
            told.append(_bounds(option["items"], name))
    return "; ".join(each for each in told if each)


def _default(node: Schema, name: str) -> str:
    default = node.get("default")
    if isinstance(default, dict) and default:
        return "see below"
    if isinstance(default, int | float) and not isinstance(default, bool):
        return _number(default, name)
    return f"`{json.dumps(default)}`"


def _number(value: float, name: str) -> str:
    """The number as it may stand in the file."""
    if unit_of(name) == "bytes":
        for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if value % size == 0:
                return f"`{value // size}{unit}`"
    return f"`{value:g}`" if value < 1e6 else f"`{value:.0f}`"


def _is_list(node: Schema) -> bool:
    return node.get("type") == "array"


def _is_mapping(node: Schema) -> bool:
    return node.get("type") == "object"


def _spelled(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".0", "[]")


def metrics() -> str:
    """The page of all metric families, and what their labels hold."""
    rows = [
        "| Metric | Kind | Labels | Unit | What it is | When to look at it |",
        "|---|---|---|---|---|---|",
    ]
    for name, family in FAMILIES.items():
        names = ", ".join(f"`{label}`" for label in family.labels)
        cells = (f"`{exposed(name)}`", family.kind, names, family.unit, family.text, family.look)
        rows.append(_line(cells))
    rows += ["", "## Labels", "", "| Label | Metrics | Values |", "|---|---|---|"]
    for label, text in LABELS.items():
        having = [exposed(name) for name, family in FAMILIES.items() if label in family.labels]
        metrics_of = ", ".join(f"`{name}`" for name in having) if len(having) < 4 else "several"
        rows.append(_line((f"`{label}`", metrics_of, text)))
    rows += [_line(("`reason`", f"`{exposed(name)}`", text)) for name, text in REASONS.items()]
    return "\n".join([METRICS, *rows, ""])


def exposed(name: str) -> str:
    """The name of a family as it stands in /metrics."""
    ending = {"counter": "_total", "info": "_info"}.get(FAMILIES[name].kind, "")
    return f"penstock_{name}{ending}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Write both pages beside this file."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}", file=sys.stderr)
    return 0


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {"configuration.md": configuration(), "metrics.md": metrics()}


if __name__ == "__main__":
    sys.exit(main())
