"""Key paths: where a value stands in the configuration, such as `pools[0].backends[1].url`.

A path is a tuple of keys and list indices. The functions here spell a path for people and find the
type that the settings want there. They do not know where values come from.
"""

from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Annotated, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr

KeyPath = tuple[str | int, ...]


def spell(path: KeyPath) -> str:
    """A path as messages print it: `pools[0].name`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def fields_of(section: type[BaseModel]) -> dict[str, str]:
    """The keys of a mapping, each with the name of its field. They differ for `class`."""
    return {field.alias or name: name for name, field in section.model_fields.items()}


def leaves(section: BaseModel, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """The path of every value that is not a section or a list of sections, and the value."""
    for key, name in fields_of(type(section)).items():
        value, at = getattr(section, name), (*path, key)
        if isinstance(value, BaseModel):
            yield from leaves(value, at)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                yield from leaves(item, (*at, index))
        else:
            yield at, value


def type_at(root: type[BaseModel], path: Sequence[str | int]) -> object:
    """The type that `root` wants at `path`. None if there is no such key."""
    wanted: object = root
    for step in path:
        if isinstance(step, int):
            items = get_args(wanted) if get_origin(wanted) is tuple else ()
            wanted = _bare(items[0]) if items else None
        elif isinstance(wanted, type) and issubclass(wanted, BaseModel):
            name = fields_of(wanted).get(step, "")
            field = wanted.model_fields.get(name)
            wanted = _bare(field.annotation) if field else None
        elif get_origin(wanted) is dict:
            wanted = _bare(get_args(wanted)[1])
        else:
            return None
    return wanted


def keys_at(root: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys that are allowed in the mapping at `path`."""
    wanted = type_at(root, path)
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return list(fields_of(wanted))
    return []


def wants_text(root: type[BaseModel], path: KeyPath) -> bool:
    """Whether the key takes text unchanged: a string, a secret or a word of a list."""
    wanted = type_at(root, path)
    return wanted in (str, SecretStr) or get_origin(wanted) is Literal


def is_secret(root: type[BaseModel], path: KeyPath) -> bool:
    """Whether the value at `path` must never be printed."""
    return type_at(root, path) is SecretStr


def _bare(annotation: object) -> object:
    """Remove `Annotated[...]` and `... | None` from a type."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    options = [option for option in get_args(annotation) if option is not NoneType]
    if NoneType in get_args(annotation) and len(options) == 1:
        return _bare(options[0])
    return annotation
