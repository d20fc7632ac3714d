"""Loads the configuration: flags win over environment, file and defaults, in this order.

All errors are collected and reported at once, each with its place and its key. The environment is
an argument, and only this module reads it. The result is valid, or a ConfigError is raised.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from penstock.conf.complaints import complaints
from penstock.conf.document import UNREAD, read
from penstock.conf.doubts import doubts, secrets_of
from penstock.conf.draft import Draft, Origin, put_environment, put_flags
from penstock.conf.files import (
    doubt_open_file,
    later_files,
    mode_for_all,
    put_secrets,
    read_regular,
    text_of_file,
)
from penstock.conf.issues import Issue, shown
from penstock.conf.keypath import KeyPath, leaves, spell
from penstock.conf.repeated_names import repeated_names
from penstock.conf.settings import Settings

# Keys that earlier versions had: they are taken with a warning that says what replaced them.
VANISHED: Final[dict[KeyPath, str]] = {
    (
        "admission",
        "reserve",
    ): "does nothing any more: a request leaves room in each KV cache for what"
    " higher classes asked for in the last second",
    ("admission", "window_s"): "does nothing any more: the window is 0.1 s or four steps of"
    " the engine, and the round trip",
}


def take_vanished(draft: Draft) -> None:
    """Warn of each such key, and take it out, whatever its value is."""
    for path, problem in VANISHED.items():
        if draft.has(path):
            draft.doubt(path, problem)
            draft.remove(path)


# What may come into being later.
_FOUND: Final = ("discover", "file")
_KEPT: Final = ("state", "dir")
# Top-level keys with this prefix are free for anchors.
FREE_PREFIX: Final = "x-"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and where the value of each key path came from."""

    settings: Settings
    origins: Mapping[str, str]
    """`default`, `file:LINE`, `env PENSTOCK_X` or `flag --x`."""
    warnings: tuple[Issue, ...] = ()
    """Valid values that are probably a mistake."""


def load(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """Load the settings, or raise a ConfigError with all errors.

    `flags` have dotted key paths (`listen.port`). Two are special: `backends` (URLs) replaces all
    pools by one pool named default with b0, b1, ...; `policy` applies to every pool.
    """
    draft = Draft()
    if path is not None:
        _put_file(draft, path, environ)
    put_environment(draft, environ)
    put_flags(draft, flags)
    take_vanished(draft)
    folder = path.parent if path is not None else Path()
    put_secrets(draft, folder)
    files = later_files(draft)
    for at in files:
        _place(draft, at, folder)
    settings = _validated(draft, [at for at in files if at[-2:] not in (_FOUND, _KEPT)])
    for at in files:
        name = draft.get(at)
        if at[-1] == "key_file" and isinstance(name, str):
            doubt_open_file(draft, at, Path(name))
        elif at[-2:] == _FOUND:
            _doubt_missing(draft, at)
    for at, problem in doubts(settings):
        draft.doubt(at, problem)
    if path is not None:
        _doubt_literal_secrets(draft, settings, path)
    origins = {spell(at): str(draft.origins.get(at, "default")) for at, _ in leaves(settings)}
    return Loaded(settings, origins, draft.doubts)


def _put_file(draft: Draft, path: Path, environ: Mapping[str, str]) -> None:
    document = read(text_of_file(path), environ)
    origins = {at: Origin("file", str(path), line) for at, line in document.lines.items()}
    for fault in document.faults:
        draft.report(fault.path, fault.problem, Origin("file", str(path), fault.line))
    if document.tree is UNREAD:
        draft.raise_issues()
    if isinstance(document.tree, dict):
        draft.tree = {
            key: value for key, value in document.tree.items() if not key.startswith(FREE_PREFIX)
        }
    elif document.tree is not None:
        problem = f"the file must be a mapping of keys, got {shown(document.tree)}"
        draft.report((), problem, origins[()])
        draft.raise_issues()
    draft.origins = {(): Origin("file", str(path), 1)} | origins


def _place(draft: Draft, at: KeyPath, folder: Path) -> None:
    """Make a relative path in a file start at the folder of that file."""
    name, origin = draft.get(at), draft.origin_of(at)
    if isinstance(name, str) and name and origin is not None and origin.layer == "file":
        draft.put(at, str(folder / name), origin)


def _doubt_literal_secrets(draft: Draft, settings: Settings, path: Path) -> None:
    """Warn of secrets in the configuration file itself, if everybody may read that file."""
    mode = mode_for_all(path)
    if mode is None:
        return
    try:
        content = path.read_bytes()
    except OSError:
        return  # the file is gone since it was read
    for at, secret, in_file in secrets_of(settings):
        origin = draft.origin_of(at)
        literal = not in_file and secret.get_secret_value().encode() in content
        if literal and origin is not None and origin.layer == "file":
            draft.doubt(
                at,
                f"stands in a file that everybody on this machine may read (mode {mode:04o}):"
                f" write ${{VAR}}, or give {at[-1]}_file",
            )


def _report_unreadable(draft: Draft, at: KeyPath) -> None:
    """Report a file that cannot be read. Nobody else will try it after a refused configuration."""
    name = draft.get(at)
    if isinstance(name, str) and name:
        try:
            read_regular(Path(name), 0)
            return
        except OSError as error:
            draft.report(at, f"{shown(Path(name).name)} cannot be read: {error.strerror}")
        except ValueError:
            draft.report(at, "is not the name of a file")


def _doubt_missing(draft: Draft, at: KeyPath) -> None:
    """Warn of a file that may come later: it is looked for all the time."""
    name = draft.get(at)
    if isinstance(name, str):
        try:
            read_regular(Path(name), 0)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not the name of a file"
            draft.doubt(at, f"{shown(Path(name).name)} cannot be read yet: {why}")


def _validated(draft: Draft, files: Iterable[KeyPath]) -> Settings:
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(draft.tree)
    except ValidationError as refusal:
        for path, problem in complaints(refusal, draft.get):
            needs_fleet = path == ("pools",) and problem == "is required"
            hint = ": list them in the file, or start with --backend URL" if needs_fleet else ""
            draft.report(path, problem + hint)
    for path, problem in repeated_names(draft.tree):
        draft.report(path, problem)
    if draft.refused:
        for at in files:
            _report_unreadable(draft, at)
    draft.raise_issues()
    assert settings is not None, "a refusal without an issue"
    return settings
