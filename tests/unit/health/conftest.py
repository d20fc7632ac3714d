"""The scene that most tests of the watch begin with."""

import pytest

from tests.unit.health.watched import Scene


@pytest.fixture
async def scene() -> Scene:
    """Its backend was seen once, and serves."""
    scene = Scene()
    await scene.turn()
    return scene
