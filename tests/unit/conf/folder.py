"""A folder with one configuration file in it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.conf.issues import ConfigError
from penstock.conf.load import Loaded, load

FLEET = """\
pools:
  - name: chat
    backends:
      - {name: a, url: "http://a:1"}
"""


class Folder:
    """A folder with one configuration file in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "conf.yaml"

    def load(
        self,
        text: str,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> Loaded:
        self.file.write_text(text)
        return load(self.file, environ or {}, flags or {})

    def issues(
        self,
        text: str,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> list[str]:
        """The lines that are printed, without the folder."""
        with pytest.raises(ConfigError) as refused:
            self.load(text, environ, flags)
        return [str(issue).replace(f"{self.path}/", "") for issue in refused.value.issues]
