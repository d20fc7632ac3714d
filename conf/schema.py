"""The JSON Schema of the configuration, for editors and for checks before a roll-out.

It is as strict as the loader about keys and kinds. Where something other than free text stands,
it also takes text with a reference such as `${PORT}`, which only the loader can replace. What
ties several keys together (unique names, one body within all bodies) is left to the loader.
"""

import json
from typing import Any, Final

from conf.settings import Settings
from conf.units import PATTERNS, allowed, unit_of

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = {
    "description": "A value from the environment: ${NAME} or ${NAME:-default}.",
    "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
    "type": "string",
}


_DURATION: Final = {
    "description": f"In place of the number: {allowed('s')}.",
    "pattern": PATTERNS["s"],
    "type": "string",
}
_SIZE: Final = {
    "description": f"In place of the number: {allowed('bytes')}.",
    "pattern": PATTERNS["bytes"],
    "type": "string",
}
_UNITS: Final = {"s": "Duration", "ms": "Duration", "bytes": "Size"}


def schema() -> str:
    """Return the schema as text, the same for the same settings."""
    draft = Settings.model_json_schema()
    definitions = {"Reference": _REFERENCE, "Duration": _DURATION, "Size": _SIZE} | {
        name: _with_references(definition) for name, definition in draft.pop("$defs").items()
    }
    document = {"$schema": DIALECT, "title": "penstock", **_with_references(draft)}
    document["$defs"] = definitions
    # Anchors for the rest of the file to use.
    document["patternProperties"] = {"^x-": True}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _with_references(node: Any, unit: str | None = None) -> Any:
    """Let a reference stand for any number, boolean, word or shaped text within `node`.

    `unit` is that of the key: with it a number may be text with a unit too.
    """
    if isinstance(node, list):
        return [_with_references(item, unit) for item in node]
    if not isinstance(node, dict):
        return node
    # Titles only repeat the keys.
    node = {key: value for key, value in node.items() if key != "title"}
    if node.get("type") in ("integer", "number", "boolean") or "pattern" in node or "enum" in node:
        about = {key: node[key] for key in ("description", "default") if key in node}
        bare = {key: value for key, value in node.items() if key not in about}
        names = [_UNITS[unit], "Reference"] if unit else ["Reference"]
        return {**about, "anyOf": [bare, *({"$ref": f"#/$defs/{name}"} for name in names)]}
    return {
        key: {name: _with_references(each, unit_of(name)) for name, each in value.items()}
        if key == "properties"
        else _with_references(value, unit)
        for key, value in node.items()
    }
