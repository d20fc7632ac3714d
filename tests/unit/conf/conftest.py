"""The folder that the tests of configurations write to."""

from pathlib import Path

import pytest

from tests.unit.conf.folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)
