"""nginx's syntax: words, quotes, comments and blocks."""

import pytest

from penstock.proxy.commands.imports.nginx_syntax import Directive, bytes_of, read_nginx, seconds_of

pytestmark = pytest.mark.once


def test_directives_and_their_lines() -> None:
    root = read_nginx(
        "a 1;  # no b;\n"
        "c \"x y\" 'it''s' ${v}z;\n"
        'd "say \\"hi\\"" a\\ b #;\n'
        ";\n"
        "e { f; g { h 2; } }\n",
        "x",
    )
    a, c, d, e = root.block or []
    assert (a.words, a.line) == (("1",), 1)
    assert (c.words, c.line) == (("x y", "it", "s", "${v}z"), 2)
    assert (d.words, d.line) == (('say "hi"', "a\\ b"), 3)
    assert e == Directive(
        "e",
        (),
        5,
        [Directive("f", (), 5), Directive("g", (), 5, [Directive("h", ("2",), 5)])],
    )


def test_a_quote_or_a_hash_within_a_word_is_part_of_it() -> None:
    (only,) = read_nginx('a b"c" d#e;', "x").block or []
    assert only.words == ('b"c"', "d#e")


def test_times() -> None:
    assert [seconds_of(text) for text in ("60", "5m", "1h 30m", "500ms", "1d")] == [
        60.0,
        300.0,
        5400.0,
        0.5,
        86400.0,
    ]
    assert [seconds_of(text) for text in ("", "x", "5x", "1.5s", "-1")] == [None] * 5


def test_sizes() -> None:
    assert [bytes_of(text) for text in ("1", "8k", "32M", "1g")] == [1, 8192, 2**25, 2**30]
    assert [bytes_of(text) for text in ("", "x", "1t", "1.5m")] == [None] * 4
