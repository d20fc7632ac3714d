"""Replaces `${VAR}`, `${VAR:-default}` and `$$` in the text of a configuration file.

Any other dollar sign is an error. Otherwise a `$VAR` would stay as it is and show up much later,
for example as a file that does not exist.
"""

import re
from collections.abc import Mapping
from typing import Final

# The last alternative matches every other dollar sign.
_REFERENCE: Final = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|)"
)


class InterpolationError(ValueError):
    """A reference that cannot be resolved. The text names the variable, never a value."""


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """Replace the references in `text`. As in a shell, a default also replaces an empty value."""

    def value_of(reference: re.Match[str]) -> str:
        if reference["dollar"]:
            return "$"
        name, default = reference["name"], reference["default"]
        if name is None:
            raise InterpolationError("write ${NAME}, ${NAME:-default}, or $$ for a dollar sign")
        value = environ.get(name, "")
        if not value and default is not None:
            return default.removeprefix(":-")
        if name not in environ:
            raise InterpolationError(
                f"environment variable {name} is not set and has no default"
                f" (${{{name}:-default}} gives one)"
            )
        return value

    return _REFERENCE.sub(value_of, text)
