"""The JSON Schema of the configuration, for editors and for checks before a rollout.

It is as strict as the loader about keys and kinds. Except for free text, a value may also be text
with a reference such as `${PORT}`, which only the loader can replace. Rules between several keys
(unique names, one body within all bodies) are left to the loader.
"""

import json
from typing import Any, Final

from penstock.conf.load import VANISHED
from penstock.conf.settings import Settings
from penstock.conf.units import PATTERNS, allowed, unit_of

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
    """The schema as text. The same settings give the same text."""
    draft = Settings.model_json_schema()
    for (section, key), problem in VANISHED.items():
        name = draft["properties"][section]["$ref"].rpartition("/")[2]
        about = {"deprecated": True, "description": problem[0].upper() + problem[1:] + "."}
        draft["$defs"][name]["properties"][key] = about
    definitions = {"Reference": _REFERENCE, "Duration": _DURATION, "Size": _SIZE} | {
        name: _with_references(definition) for name, definition in draft.pop("$defs").items()
    }
    document = {"$schema": DIALECT, "title": "penstock", **_with_references(draft)}
    document["$defs"] = definitions
    # Keys for anchors.
    document["patternProperties"] = {"^x-": True}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _with_references(node: Any, unit: str | None = None) -> Any:
    """Let a reference replace any number, boolean, word or shaped text within `node`.

    `unit` is the unit of the key. With one, a number may also be text with a unit.
    """
    if isinstance(node, list):
        return [_with_references(item, unit) for item in node]
    if not isinstance(node, dict):
        return node
    # Titles would only repeat the keys.
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
