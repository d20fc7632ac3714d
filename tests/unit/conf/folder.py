"""A folder with one configuration file in it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from penstock.conf.issues import ConfigError, Issue
from penstock.conf.keypath import KeyPath, keys_at
from penstock.conf.load import Loaded, load
from penstock.conf.settings import Settings

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
        return load(self.write(text), environ or {}, flags or {})

    def write(self, text: str) -> Path:
        """As a file that nobody else may read."""
        self.file.write_text(text)
        self.file.chmod(0o600)
        return self.file

    def issues(
        self,
        text: str,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> list[str]:
        """The lines that are printed, without the folder."""
        with pytest.raises(ConfigError) as refused:
            self.load(text, environ, flags)
        return [self.line(issue) for issue in refused.value.issues]

    def warnings(self, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
        """The same of what is only doubted."""
        return [self.line(each) for each in self.load(text, environ).warnings]

    def line(self, issue: Issue) -> str:
        return str(issue).replace(f"{self.path}/", "")


def every_key(path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of the settings, those of lists at their first entry."""
    for key in keys_at(Settings, path):
        at = (*path, key)
        yield at
        yield from every_key(at)
        yield from every_key((*at, 0))


def text_of(secret: SecretStr | None) -> str:
    assert secret is not None
    return secret.get_secret_value()
