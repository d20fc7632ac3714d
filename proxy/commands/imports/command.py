"""`penstock import`: a configuration of penstock from that of another proxy."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.conf.files import text_of_file
from penstock.conf.issues import ConfigError, Issue

_PROGRAMS: Final = {"litellm": "LiteLLM's proxy", "nginx": "nginx"}


def add_imports(commands: Any) -> None:
    """Add `import` and what can be imported."""
    imports = commands.add_parser(
        "import",
        help="write a configuration from that of LiteLLM's proxy or nginx",
        epilog="Example: penstock import litellm config.yaml > penstock.yaml; exit status 2 when "
        "the file cannot be read.",
    )
    kinds = imports.add_subparsers(required=True, metavar="KIND")
    for kind, program in _PROGRAMS.items():
        one = kinds.add_parser(
            kind,
            help=f"from the configuration of {program}",
            description="What has no equal in penstock is told in comments, in the place where it "
            "would stand. Keys are written as ${VAR} only (docs/import.md).",
            epilog=f"Example: penstock import {kind} FILE --output penstock.yaml; exit status 2 "
            "when the file cannot be read, or nothing in it can be served.",
        )
        one.add_argument("file", type=Path, metavar="FILE", help=f"configuration of {program}")
        one.add_argument(
            "--output", type=Path, metavar="NEW", help="file to write (default: standard output)"
        )
        one.set_defaults(command=_import, kind=kind)


def imported(kind: str, text: str, file: str) -> str:
    """The configuration as YAML. Raises ConfigError with all that is wrong with the text."""
    from penstock.proxy.commands.imports.litellm import litellm
    from penstock.proxy.commands.imports.nginx import nginx
    from penstock.proxy.commands.imports.yaml_text import LOST, Part, comment, text_of

    readers: dict[str, Callable[[str, str], Part]] = {"litellm": litellm, "nginx": nginx}
    part = readers[kind](text, file)
    head = comment(
        f"Written by `penstock import {kind}` from {Path(file).name}. Read each line that begins"
        f" with '{LOST}'. Then: penstock check FILE.",
        0,
    )
    return "\n".join(head) + "\n\n" + text_of(part)


def _import(parsed: argparse.Namespace) -> int:
    written = imported(parsed.kind, text_of_file(parsed.file), str(parsed.file))
    if parsed.output is None:
        print(written, end="")
        return 0
    try:
        parsed.output.write_text(written, encoding="utf-8")
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise ConfigError([Issue(str(parsed.output), (), problem)]) from None
    print(f"{parsed.output}: written. Check it: penstock check {parsed.output}", file=sys.stderr)
    return 0
