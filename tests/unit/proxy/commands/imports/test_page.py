"""The page about imports shows what is written."""

import re

import pytest

from docs.references import FOLDER
from penstock.proxy.commands.imports.command import imported

pytestmark = pytest.mark.once

PAGE = (FOLDER / "import.md").read_text(encoding="utf-8")
WRITTEN = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
CASES = (("litellm", "text", "config.yaml"), ("nginx", "nginx", "nginx.conf"))


@pytest.mark.parametrize(("case", "written"), list(zip(CASES, WRITTEN, strict=True)))
def test_the_examples_are_what_is_written(case: tuple[str, str, str], written: str) -> None:
    kind, language, file = case
    (theirs,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert imported(kind, theirs, file) == written
