"""What `penstock config` prints: the effective configuration, and the JSON Schema.

The configuration is YAML with the origin of each value as a comment. It can be loaded again: text
is quoted and its dollar signs are doubled. Only secrets are lost: each is shown as ***.

The schema is as strict as the loader about keys and kinds. Except for free text, a value may also
be text with a reference such as `${PORT}`, which only the loader can replace. Rules between several
keys (unique names, one body within all bodies) are left to the loader.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from penstock.conf.issues import MASK
from penstock.conf.keypath import KeyPath, fields_of, spell
from penstock.conf.load import VANISHED, Loaded
from penstock.conf.settings import Settings
from penstock.conf.units import PATTERNS, allowed, unit_of


def render(loaded: Loaded) -> str:
    """Render every key, including defaults, in the order of the settings."""
    lines = []
    for indent, text, path in _lines(loaded.settings, (), 0):
        origin = loaded.origins.get(spell(path))
        lines.append(" " * indent + text + (f"  # {printable(origin)}" if origin else ""))
    return "\n".join(lines) + "\n"


def as_json(loaded: Loaded) -> dict[str, object]:
    """The effective configuration for programs: `settings` by key, `origins` by dotted path."""
    settings = loaded.settings.model_dump(mode="json", by_alias=True)
    return {"settings": settings, "origins": dict(loaded.origins)}


def _lines(section: BaseModel, path: KeyPath, indent: int) -> Iterator[tuple[int, str, KeyPath]]:
    for key, name in fields_of(type(section)).items():
        value, at = getattr(section, name), (*path, key)
        if isinstance(value, BaseModel):
            yield indent, f"{key}:", at
            yield from _lines(value, at, indent + 2)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield indent, f"{key}:", at
            for index, item in enumerate(value):
                dashed = _lines(item, (*at, index), 0)
                for number, (deeper, text, where) in enumerate(dashed):
                    yield indent + 2, ("  " if number else "- ") + " " * deeper + text, where
        else:
            yield indent, f"{key}: {_value(value)}", at


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_value(key)}: {_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, SecretStr):
        return f'"{MASK}"'
    if isinstance(value, str):
        return printable(json.dumps(value.replace("$", "$$"), ensure_ascii=False))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def printable(text: str) -> str:
    """Text with YAML's escapes for all that cannot be seen."""
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


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
