"""Load the configuration: flags over environment over file over defaults.

Every error is collected and told at once, with its place and its key; the environment is read
here and nowhere else, as an argument. What comes out is valid, or a ConfigError is raised.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from conf.complaints import complaints
from conf.document import UNREAD, Document, read
from conf.draft import Draft, Origin
from conf.issues import ConfigError, Issue, shown
from conf.keypath import KeyPath, spell
from conf.overlay import put_environment, put_flags
from conf.repeated_names import repeated_names
from conf.secret_files import put_secrets
from conf.settings import Settings

FILE_BYTES_MAX: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and for each key path where its value came from."""

    settings: Settings
    origins: Mapping[str, str]
    """`default`, `file:LINE`, `env PENSTOCK_X` or `flag --x`."""


def load(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """Load the settings, or raise a ConfigError with all that is wrong.

    `flags` are dotted key paths (`listen.port`), and `backends` (URLs: replace all pools by one
    named default, with b0, b1, ...) and `policy` (of every pool).
    """
    draft = Draft()
    if path is not None:
        _put_file(draft, path, environ)
    put_environment(draft, environ)
    put_flags(draft, flags)
    folder = path.parent if path is not None else Path()
    put_secrets(draft, folder)
    _place(draft, ("tokens", "file"), folder)
    _place(draft, ("listen", "tls", "cert_file"), folder)
    _place(draft, ("listen", "tls", "key_file"), folder)
    pools = draft.get(("pools",))
    for index in range(len(pools) if isinstance(pools, list) else 0):
        _place(draft, ("pools", index, "tls", "ca_file"), folder)
    settings = _validated(draft)
    origins = {
        spell(leaf): str(draft.origins.get(leaf, "default")) for leaf in _leaves(settings, ())
    }
    return Loaded(settings, origins)


def _put_file(draft: Draft, path: Path, environ: Mapping[str, str]) -> None:
    document = _read_file(path, environ)
    origins = {at: Origin("file", str(path), line) for at, line in document.lines.items()}
    for fault in document.faults:
        draft.report(fault.path, fault.problem, Origin("file", str(path), fault.line))
    if document.tree is UNREAD:
        draft.raise_issues()
    if isinstance(document.tree, dict):
        draft.tree = document.tree
    elif document.tree is not None:
        problem = f"the file must be a mapping of keys, got {shown(document.tree)}"
        draft.report((), problem, origins[()])
        draft.raise_issues()
    draft.origins = {(): Origin("file", str(path), 1)} | origins


def _read_file(path: Path, environ: Mapping[str, str]) -> Document:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise ConfigError([Issue(str(path), (), problem)]) from None
    except ValueError:
        raise ConfigError([Issue(str(path), (), "is not the name of a file")]) from None
    if len(content) > FILE_BYTES_MAX:
        problem = f"is larger than {FILE_BYTES_MAX:,} bytes"
        raise ConfigError([Issue(str(path), (), problem)])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"not UTF-8: byte 0x{content[error.start]:02x}"
        raise ConfigError([Issue(f"{path}:{line}", (), problem)]) from None
    return read(text, environ)


def _place(draft: Draft, at: KeyPath, folder: Path) -> None:
    """Let a relative path in a file start at the folder of that file."""
    name, origin = draft.get(at), draft.origin_of(at)
    if isinstance(name, str) and name and origin is not None and origin.layer == "file":
        draft.put(at, str(folder / name), origin)


def _validated(draft: Draft) -> Settings:
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(draft.tree)
    except ValidationError as refusal:
        for path, problem in complaints(refusal):
            needs_fleet = path == ("pools",) and problem == "is required"
            hint = ": list them, or give --backend URL" if needs_fleet else ""
            draft.report(path, problem + hint)
    for path, problem in repeated_names(draft.tree):
        draft.report(path, problem)
    draft.raise_issues()
    assert settings is not None, "a refusal without an issue"
    return settings


def _leaves(section: BaseModel, path: KeyPath) -> Iterator[KeyPath]:
    """Give the path of every value that is not itself a section or a list of them."""
    for key in type(section).model_fields:
        value, at = getattr(section, key), (*path, key)
        if isinstance(value, BaseModel):
            yield from _leaves(value, at)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                yield from _leaves(item, (*at, index))
        else:
            yield at
