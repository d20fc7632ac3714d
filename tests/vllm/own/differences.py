"""Tests of vLLM's that pass direct and not through penstock, each with the reason."""

from typing import Final

DIFFERENCES: Final[dict[str, str]] = {}
