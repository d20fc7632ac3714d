"""Which inherited socket is ours, as far as the environment tells."""

import pytest

from penstock.proxy.process.listening import inherited


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "8"},
        {"LISTEN_FDS": "0", "LISTEN_PID": "7"},
        {"LISTEN_FDS": "x", "LISTEN_PID": "7"},
        {"LISTEN_PID": "7"},
    ],
)
def test_without_a_socket_of_ours_there_is_none(environ: dict[str, str]) -> None:
    """A child has the variables of its parent, not the descriptors that they tell of."""
    assert inherited("data", environ, pid=7) is None


def test_one_of_several_must_be_named() -> None:
    environ = {"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "a:b"}
    with pytest.raises(OSError, match="none of the 2 inherited sockets is named `data`"):
        inherited("data", environ, pid=7)
