"""An imported configuration, read as penstock reads it."""

import re
from pathlib import Path
from typing import Final

from penstock.conf.load import Loaded, load
from penstock.proxy.commands.imports.command import imported

EXAMPLES: Final = Path(__file__).parent / "examples"
KEY: Final = "0123456789abcdef"


def environment_of(text: str) -> dict[str, str]:
    """A value for each variable that the configuration names: a key, or an address."""
    names = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text))
    return {
        name: "http://10.0.0.99:8000" if name.endswith("_BASE") else f"{name}-{KEY}"
        for name in names
    }


def carried(kind: str, text: str, folder: Path) -> tuple[Loaded, str]:
    """The settings, and all remarks in one line."""
    written = imported(kind, text, "theirs")
    path = folder / "penstock.yaml"
    path.write_text(written, encoding="utf-8")
    for name in ("tls.crt", "tls.key"):
        (folder / name).touch(mode=0o600)
    remarks = " ".join(re.findall(r"^ *# (.*)$", written, re.MULTILINE))
    return load(path, environment_of(written), {}), remarks
