"""YAML text becomes plain data and lines, within bounds; every fault has its line."""

from collections.abc import Mapping

import pytest

from penstock.conf.document import UNREAD, InterpolationError, interpolate, read


def tree(text: str, environ: Mapping[str, str] | None = None) -> object:
    document = read(text, environ)
    assert document.faults == ()
    return document.tree


def fault(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The only fault, as `line: path: problem`."""
    (only,) = read(text, environ).faults
    return f"{only.line}: {'.'.join(map(str, only.path))}: {only.problem}"


def test_each_key_and_entry_has_its_line() -> None:
    text = "# comment\na:\n  b: 1\n  c:\n    - x\n    - d:\n        2\n"
    assert read(text).lines == {
        (): 2,
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 4,
        ("a", "c", 0): 5,
        ("a", "c", 1): 6,
        ("a", "c", 1, "d"): 6,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("2001-01-01", "2001-01-01"),
        ("'8080'", "8080"),
        ("!!str 8080", "8080"),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    read_value = tree(f"[{text}]" if text else "[~]")
    assert read_value == [value]
    assert isinstance(read_value, list)
    assert type(read_value[0]) is type(value)


def test_an_empty_document_is_none() -> None:
    assert tree("") is None
    assert tree("# nothing\n") is None


def test_anchors_and_merges_work() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [{x: 7}, *a]}\nd: *a\n"
    assert tree(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 7, "y": 2},
        "d": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3", "3: a: duplicate key, given on line 1 and again on line 3"),
        ("8080: x", "1: : keys must be text, got 8080"),
        ("? [a]\n: 1", "1: : keys must be text, got a collection"),
        ("a: 1\n<<: 3", "2: : << takes a mapping or a list of mappings"),
        ("a: !!python/name:os.system x", "1: a: has a tag that is not supported"),
        ("a: !!timestamp 2001-01-01", "1: a: has a tag that is not supported"),
        ("a: !!int x", "1: a: is not the number that its tag says"),
        ("a: !!bool x", "1: a: has a tag that is not supported"),
        ("a: !!float ''", "1: a: is not the number that its tag says"),
        (f"a: {'9' * 5000}", "1: a: is a number of more than 64 digits"),
        (f"a: 0x{'f' * 5000}", "1: a: is a number of more than 64 digits"),
        ('a: "\\uD800"', "1: a: is not valid Unicode"),
        ('"\\uD800": 1', "1: : a key is not valid Unicode"),
        ("a: 1\nb: \x00", "2: : character U+0000 is not allowed"),
        ("a: 1\n---\nb: 1", "2: : not valid YAML: expected a single document in the stream, but"),
        ("a:\n\tb: 1", "2: : not valid YAML: while scanning for the next token, found character"),
        ('a: "\\UFFFFFFFF"', "1: : not valid YAML: a number in an escape or a directive is out"),
        (f"%YAML {'9' * 5000}.1\n---\na", "1: : not valid YAML: a number in an escape"),
    ],
)
def test_what_is_refused_has_its_line(text: str, expected: str) -> None:
    assert fault(text).startswith(expected)


def test_a_tab_and_a_reference_in_braces_get_a_hint() -> None:
    assert fault("a:\n\tb: 1").endswith("; indent with spaces, not tabs")
    assert fault("a: {b: ${X}}", {"X": "1"}).endswith('"${NAME}", or give it a line of its own')


def test_other_syntax_errors_get_no_hint() -> None:
    assert fault("a: 1\nb: [").endswith("but found '<stream end>'")


def test_faults_do_not_end_the_reading() -> None:
    document = read("a: ${X}\nb: 1\nb: 2\n3: 4\nc: ok", {})
    assert document.tree == {"a": UNREAD, "b": 1, "c": "ok"}
    assert sorted(fault.line for fault in document.faults) == [1, 3, 4]


def test_a_fault_in_an_anchor_is_told_once() -> None:
    assert fault("a: &a {x: 1, x: 2}\nb: *a\nc: *a").startswith("1: a.x: duplicate key")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 10_000, "nested deeper than 32 levels"),
        ("{a: " * 10_000, "nested deeper than 32 levels"),
        ("- " * 10_000, "nested deeper than 32 levels"),
        ("&a [*a, *a]", "aliases nest deeper than 32 levels"),
        ("&a {<<: *a}", "aliases nest deeper than 32 levels"),
    ],
)
def test_depth_is_bounded(text: str, problem: str) -> None:
    assert fault(text) == f"1: : {problem}"


def test_aliases_cannot_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.conf.document.VALUES_MAX", 10_000)
    laughs = "a0: &a0 [x, x]\n"
    for level in range(1, 20):
        laughs += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    assert "aliases expand to more than 10,000 values" in fault(laughs)


def test_merges_cannot_multiply() -> None:
    keys = ", ".join(f"k{number}: 1" for number in range(100))
    merges = ", ".join(["*a"] * 1000)
    assert "aliases expand to more than" in fault(f"a: &a {{{keys}}}\nb: {{<<: [{merges}]}}")


def test_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.conf.document.VALUES_MAX", 100)
    assert fault("\n".join(["- 1"] * 200)) == "101: : more than 100 values"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "1"),
        ("x${A}y${B}", "x1ytwo words"),
        ("${NONE:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${NONE:-a:-b}", "a:-b"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$$$", "$$"),
        ("no reference", "no reference"),
    ],
)
def test_references_are_replaced(text: str, expected: str) -> None:
    assert interpolate(text, {"A": "1", "B": "two words", "EMPTY": ""}) == expected


def test_what_a_variable_holds_is_not_replaced_again() -> None:
    assert interpolate("${A}", {"A": "${B} $$"}) == "${B} $$"


@pytest.mark.parametrize("text", ["$A", "${}", "${1A}", "${A", "${A-b}", "cost: 5$"])
def test_any_other_dollar_sign_is_refused(text: str) -> None:
    with pytest.raises(InterpolationError, match="for a dollar sign"):
        interpolate(text, {"A": "1"})


def test_an_unset_variable_is_an_error_at_its_line() -> None:
    assert fault("a: 1\nb:\n  c: x${NOPE}", {}) == (
        "3: b.c: environment variable NOPE is not set and has no default (${NOPE:-default}"
        " gives one)"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${P}", 8080),
        ("${P:-1}", 8080),
        ("${NONE:-1.5}", 1.5),
        ("${NONE:-true}", True),
        ("${NONE:-}", None),
        ("'${P}'", "8080"),
        ('"${P}"', "8080"),
        ("${LIST}", "[1, 2]"),
    ],
)
def test_an_unquoted_reference_has_the_type_of_its_value(text: str, value: object) -> None:
    assert tree(f"a: {text}", {"P": "8080", "LIST": "[1, 2]"}) == {"a": value}


def test_without_an_environment_dollar_signs_stay() -> None:
    assert tree("a: ${P} $$") == {"a": "${P} $$"}
