"""A play before two backends, and the end of every play."""

from collections.abc import Iterator

import pytest

from tests.unit.proxy.data.playbook import Play


@pytest.fixture(autouse=True)
def plays() -> Iterator[None]:
    """None of them leaves anything."""
    Play.open.clear()
    yield
    for play in reversed(Play.open[:]):
        play.close()


@pytest.fixture
def play() -> Play:
    return Play()
