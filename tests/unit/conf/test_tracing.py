"""Where spans go: the receiver's URL, and the headers that it asks for."""

from pathlib import Path

import pytest

from penstock.conf.show import render
from penstock.proxy.reload.certificates import certificates_of
from tests.unit.conf.folder import FLEET, Folder, text_of

LINES = "authorization: Bearer hunter2\nx-scope: a b\n"


def with_tracing(keys: str) -> str:
    return FLEET + f"tracing: {{{keys}}}\n"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://otel:4318", "http://otel:4318/v1/traces"),
        ("http://otel:4318/", "http://otel:4318/v1/traces"),
        ("https://otlp.example.com/x/traces", "https://otlp.example.com/x/traces"),
    ],
)
def test_without_a_path_the_usual_one_is_meant(folder: Folder, url: str, expected: str) -> None:
    loaded = folder.load(with_tracing(f"otlp_endpoint: '{url}'"))
    assert loaded.settings.tracing.otlp_endpoint == expected


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            "otlp_endpoint: 'http://u:hunter2@otel'",
            "otlp_endpoint: must not hold credentials: use tracing.headers_file",
        ),
        ("otlp_endpoint: otel:4318", "otlp_endpoint: must begin with http:// or https://"),
        ("ratio: 1.5", "ratio: must be at most 1"),
        ("ratio: -1", "ratio: must be at least 0"),
        ("forced_ratio: .nan", "forced_ratio: must be a finite number"),
        ("forced_per_minute: 1.5", "forced_per_minute: must be a whole number"),
        ("headers: 'hunter2'", "headers: line 1 must be `name: value`, in visible ASCII"),
        ('headers: "a: hunter2\\nhunter2"', "headers: line 2 must be `name: value`"),
        ('headers: "a: b\\r\\nc: hunter2"', "headers: line 1 must be `name: value`"),
        ("headers: 'Content-Length: 2'", "headers: line 1: this header is penstock's own"),
        (f'headers: "{chr(92)}n"', "headers: line 1 must be `name: value`"),
        ("endpoint: x", "endpoint: unknown key; did you mean otlp_endpoint?"),
    ],
)
def test_what_cannot_be_used_is_refused_and_no_secret_is_told(
    folder: Folder, keys: str, problem: str
) -> None:
    (issue,) = folder.issues(with_tracing(keys))
    assert issue.startswith(f"conf.yaml:5: tracing.{problem}")
    if keys.startswith("headers"):
        assert "hunter2" not in issue


def test_too_many_lines_are_refused(folder: Folder) -> None:
    lines = "\\n".join(f"x-{number}: y" for number in range(17))
    (issue,) = folder.issues(with_tracing(f'headers: "{lines}"'))
    assert "is too long: at most 16 lines and 16384 characters" in issue


@pytest.mark.parametrize("content", [LINES, LINES.replace("\n", "\r\n"), LINES.rstrip()])
def test_headers_come_from_a_file_and_are_never_shown(folder: Folder, content: str) -> None:
    (folder.path / "headers").write_bytes(content.encode())
    loaded = folder.load(with_tracing("headers_file: headers"))
    headers = loaded.settings.tracing.headers
    assert text_of(headers) == LINES.rstrip()
    shown = render(loaded)
    assert "hunter2" not in shown
    assert '  headers: "***"' in shown


def test_a_file_of_headers_that_cannot_be_used(folder: Folder) -> None:
    (folder.path / "headers").write_text("hunter2\n")
    (issue,) = folder.issues(with_tracing("headers_file: headers"))
    assert issue == (
        'conf.yaml:5: tracing.headers_file: "headers" line 1 must be `name: value`,'
        " in visible ASCII"
    )


def test_short_lines_are_no_short_keys(folder: Folder) -> None:
    warnings = folder.warnings(with_tracing("headers: 'x: 1'"))
    assert not [each for each in warnings if "fewer than" in each]


@pytest.mark.parametrize(("scheme", "has"), [("http", False), ("https", True)])
def test_only_a_receiver_with_https_has_a_context(folder: Folder, scheme: str, has: bool) -> None:
    loaded = folder.load(with_tracing(f"otlp_endpoint: '{scheme}://otel'"))
    assert (certificates_of(loaded, Path()).receiver is not None) == has
