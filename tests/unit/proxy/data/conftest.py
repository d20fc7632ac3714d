"""A play before two backends."""

from collections.abc import Iterator

import pytest

from tests.unit.proxy.data.playbook import Play


@pytest.fixture
def play() -> Iterator[Play]:
    play = Play()
    yield play
    play.close()
