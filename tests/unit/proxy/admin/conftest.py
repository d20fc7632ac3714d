"""A data plane that is played by hand, with one backend."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.unit.proxy.data.playbook import Play


@pytest.fixture
def play() -> Iterator[Play]:
    with contextlib.closing(Play(1)) as play:
        yield play
