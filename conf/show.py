"""The effective configuration as YAML, with the origin of each value as a comment.

It can be loaded again: text is quoted and its dollar signs are doubled. Only secrets are lost: each
is shown as ***.
"""

import json
from collections.abc import Iterator

from pydantic import BaseModel, SecretStr

from penstock.conf.issues import MASK
from penstock.conf.keypath import KeyPath, fields_of, spell
from penstock.conf.load import Loaded


def render(loaded: Loaded) -> str:
    """Render every key, including defaults, in the order of the settings."""
    lines = []
    for indent, text, path in _lines(loaded.settings, (), 0):
        origin = loaded.origins.get(spell(path))
        lines.append(" " * indent + text + (f"  # {_printable(origin)}" if origin else ""))
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
        return _printable(json.dumps(value.replace("$", "$$"), ensure_ascii=False))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)
