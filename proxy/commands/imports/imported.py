"""The text of an imported configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.proxy.commands.imports.litellm import litellm
from penstock.proxy.commands.imports.nginx import nginx
from penstock.proxy.commands.imports.part import LOST, Part
from penstock.proxy.commands.imports.yaml_text import comment, text_of

_READERS: Final[dict[str, Callable[[str, str], Part]]] = {"litellm": litellm, "nginx": nginx}


def imported(kind: str, text: str, file: str) -> str:
    """The configuration as YAML. Raises ConfigError with all that is wrong with the text."""
    part = _READERS[kind](text, file)
    head = comment(
        f"Written by `penstock import {kind}` from {Path(file).name}. Read each line that begins"
        f" with '{LOST}'. Then: penstock check FILE.",
        0,
    )
    return "\n".join(head) + "\n\n" + text_of(part)
