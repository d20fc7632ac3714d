"""How long an answer may become: what clients write of it, and what is edited to make it less."""

from typing import Any

import msgspec
import pytest

from penstock.balancing.apis import api_of
from penstock.balancing.body_edits import answer_limits, cap_edits, within
from penstock.balancing.fields import Fields
from penstock.balancing.forms import MalformedAsk

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX, NEW, OUTPUT = b"max_tokens", b"max_completion_tokens", b"max_output_tokens"
CAP = b"512"


def edits(path: str, body: bytes, most: int = 512) -> dict[bytes, bytes]:
    limits = answer_limits(api_of(path), msgspec.json.decode(body, type=Fields))
    found = cap_edits(path, limits, most)
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [
        (CHAT, b'{"max_tokens":4096}', {MAX: CAP}),
        (CHAT, b'{"max_completion_tokens":4096}', {NEW: CAP}),
        (CHAT, b'{"max_completion_tokens":4096,"max_tokens":4096}', {NEW: CAP, MAX: CAP}),
        (CHAT, b'{"max_completion_tokens":100,"max_tokens":4096}', {MAX: CAP}),
        (CHAT, b'{"max_completion_tokens":null,"max_tokens":100}', {}),
        (CHAT, b'{"max_completion_tokens":null}', {MAX: CAP}),
        (CHAT, b'{"model":"m"}', {MAX: CAP}),
        (CHAT, b'{"max_tokens":512}', {}),
        (CHAT, b'{"max_output_tokens":100}', {MAX: CAP}),  # that is no field of this API
        (CHAT + "/batch", b"{}", {MAX: CAP}),
        ("/v1/messages", b'{"max_tokens":4096}', {MAX: CAP}),
        ("/v1/messages", b"{}", {MAX: CAP}),
        ("/v1/responses", b'{"max_output_tokens":4096}', {OUTPUT: CAP}),
        ("/v1/responses", b'{"max_tokens":4096}', {OUTPUT: CAP}),
        ("/v1/responses", b"{}", {OUTPUT: CAP}),
        (COMPLETIONS, b'{"max_tokens":4096}', {MAX: CAP}),
        (COMPLETIONS, b'{"max_tokens":null}', {MAX: CAP}),  # as much as there is room for
        (COMPLETIONS, b"{}", {b"max_tokens": b"16"}),
        ("/tokenize", b'{"max_tokens":4096}', {}),
    ],
)
def test_what_is_larger_is_lowered_and_what_is_missing_added(
    path: str, body: bytes, wanted: dict[bytes, bytes]
) -> None:
    assert edits(path, body) == wanted


def test_a_completion_without_a_limit_has_sixteen_tokens() -> None:
    """So says OpenAI's API, and so does vLLM. Other servers take it for no limit at all."""
    assert edits(COMPLETIONS, b"{}", 16) == {b"max_tokens": b"16"}
    assert edits(COMPLETIONS, b"{}", 15) == {MAX: b"15"}


@pytest.mark.parametrize("written", ["1e6", "4096.0", "9" * 30])
def test_no_way_to_write_a_number_gets_round_it(written: str) -> None:
    body = b'{"max_tokens":%b}' % written.encode()
    assert edits(CHAT, body) == {MAX: CAP}
    assert edits(CHAT, b'{"max_\\u0074okens":%b}' % written.encode()) == {MAX: CAP}
    body = b'{"max_completion_tokens":%b,"max_tokens":4}' % written.encode()
    assert edits(CHAT, body) == {NEW: CAP}


@pytest.mark.parametrize("written", ["-1", "0"])
def test_what_no_backend_takes_is_left_for_it_to_refuse(written: str) -> None:
    assert edits("/v1/messages", b'{"max_tokens":%b}' % written.encode()) == {}


@pytest.mark.parametrize("written", ["true", "[]", '"4096"', '"0_0_0_4_0_0_0"', "1.5", "9" * 9_000])
def test_what_is_no_whole_number_is_refused(written: str) -> None:
    for name in ("max_tokens", "min_tokens"):
        with pytest.raises(MalformedAsk, match=name):
            edits(CHAT, b'{"%b":%b}' % (name.encode(), written.encode()))


def test_a_nought_in_the_field_that_is_read_first_does_not_hide_the_other() -> None:
    assert edits(CHAT, b'{"max_completion_tokens":0}') == {MAX: CAP}


def test_the_least_that_a_client_asks_for_is_lowered_too() -> None:
    assert edits(CHAT, b'{"min_tokens":513,"max_tokens":4096}') == {MAX: CAP, b"min_tokens": CAP}
    assert edits(CHAT, b'{"min_tokens":513}') == {MAX: CAP, b"min_tokens": CAP}
    assert edits(CHAT, b'{"min_tokens":512,"max_tokens":4096}') == {MAX: CAP}
    assert edits(CHAT, b'{"min_tokens":null,"max_tokens":4096}') == {MAX: CAP}
    assert edits("/v1/responses", b'{"min_tokens":513,"max_output_tokens":64}') == {}


def test_sampling_params_are_edited_inside() -> None:
    options = b'{"max_tokens":4096,"stop":["}"],"x":1e400}'
    after = within(options, ((MAX, CAP), (b"min_tokens", b"2")))
    assert after == b'{"max_tokens":512,"stop":["}"],"x":1e400,"min_tokens":2}'
    assert within(b"{}", ((MAX, CAP),)) == b'{"max_tokens":512}'


def test_the_largest_cap_is_a_number_of_any_size() -> None:
    fields: dict[str, Any] = {"max_tokens": 2**60}
    assert edits(CHAT, msgspec.json.encode(fields), 2**53) == {MAX: b"%d" % 2**53}
