"""No port is left toward a backend: another takes the request, and nobody is to blame."""

from collections.abc import Iterator

import pytest

from tests.http.rig import Loop, Rig

REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 14\r\n\r\n" + b'{"prompt":"x"}'
)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def test_another_backend_takes_what_has_no_port_toward_the_first(loop: Loop) -> None:
    rig = Rig(loop, backends=2)
    first = rig.backends[0]
    loop.without_ports = {"10.0.0.1"}
    for _ in range(20):
        got, _, upstream = loop.run_until_complete(rig.play([REQUEST]))
        assert got.startswith(b"HTTP/1.1 200 ")
        assert len(upstream) == 1
    assert (first.penalty.until_s, first.failures_total) == (0.0, 0)


def test_without_a_port_toward_any_the_request_is_shed(loop: Loop) -> None:
    rig = Rig(loop, backends=2)
    loop.without_ports = {"10.0.0.1", "10.0.0.2"}
    got, _, upstream = loop.run_until_complete(rig.play([REQUEST]))
    assert got.startswith(b"HTTP/1.1 429 ")
    assert b'"code":"overloaded"' in got
    assert not upstream
