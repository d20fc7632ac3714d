"""A beam search is asked for at the top of a request, and nowhere else."""

import pytest

from penstock.balancing.fields import BEAM_BYTES_MAX, searches_beams


@pytest.mark.parametrize("value", [b"true", b"1", b'"true"'])
def test_a_beam_search(value: bytes) -> None:
    assert searches_beams(b'{"model":"m","use_beam_search": %b}' % value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"use_beam_search":false}',
        b'{"use_beam_search":null}',
        b'{"use_beam_search":true,"use_beam_search":false}',
        b'{"metadata":{"use_beam_search":true}}',
        b'{"messages":[{"use_beam_search":true}]}',
        b'{"messages":["use_beam_search"]}',
        b'{"use_beam_search":true',
        b'["use_beam_search",true]',
        b'{"use_beam_search":true,"x":' + b"[" * 100_000,
        b'{"use_beam_search":true,"x":"' + b"x" * BEAM_BYTES_MAX + b'"}',
    ],
)
def test_no_beam_search(body: bytes) -> None:
    assert not searches_beams(body)
