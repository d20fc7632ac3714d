"""What the tests beside it share."""

import pytest

from penstock.balancing.backend import Backend
from tests.unit.balancing.backends import ready


@pytest.fixture
def backend() -> Backend:
    return ready()
