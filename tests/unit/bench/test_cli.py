"""Every benchmark can be asked what it takes, refuses all else, and says why it cannot go on."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from types import ModuleType

import pytest

from penstock.bench.arguments import count, names, nonnegative, positive, share
from penstock.bench.cli import COMMANDS, run
from penstock.bench.report import BenchError


@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_helps(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(name, "--help")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: penstock bench {name} ")


@pytest.mark.parametrize(
    ("error", "status"), [(BenchError("no server"), 1), (KeyboardInterrupt(), 130), (None, 0)]
)
def test_the_command_line_is_printed_and_an_error_is_told(
    error: BaseException | None,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started(monkeypatch, error)
    assert run("made_up", "--each", "a b") == status
    said = capsys.readouterr()
    assert said.out == "$ penstock bench made_up --each 'a b'\n\n"
    assert said.err == ("penstock bench: no server\n" if status == 1 else "")


def test_what_cannot_be_meant_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, ArgumentTypeError("no such trace"))
    with pytest.raises(SystemExit) as ended:
        run("made_up", "--each", "1")
    assert ended.value.code == 2


def started(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
    """Make a benchmark that ends with this error."""

    def arguments(parser: ArgumentParser) -> None:
        parser.add_argument("--each")

    def run_it(options: Namespace) -> int:
        if error is not None:
            raise error
        return 0

    module = ModuleType("made_up")
    vars(module).update(arguments=arguments, run=run_it)
    monkeypatch.setitem(COMMANDS, "made_up", ("made_up", "a benchmark"))
    monkeypatch.setitem(sys.modules, "penstock.bench.made_up", module)


@pytest.mark.parametrize(
    ("kind", "text"), [(count, "3"), (positive, "0.5"), (share, "1"), (nonnegative, "2")]
)
def test_a_number_of_its_kind_is_taken(kind: Callable[[str], float], text: str) -> None:
    assert kind(text) == float(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(count, text) for text in ("0", "-1", "1.5", "many", "")]
    + [(positive, text) for text in ("0", "-1", "nan", "inf", "x")]
    + [(share, text) for text in ("-0.1", "1.01", "nan", "x")]
    + [(nonnegative, text) for text in ("-0.1", "nan", "-inf", "x")],
)
def test_any_other_is_refused(kind: Callable[[str], float], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="number"):
        kind(text)


def test_names_are_those_that_are_known() -> None:
    policies = names("policy", ["session", "random"])
    assert policies("random,session") == ["random", "session"]
    with pytest.raises(ArgumentTypeError, match=r"no policy 'magic'; there are session, random"):
        policies("session,magic")
    with pytest.raises(ArgumentTypeError, match=r"no policy ''"):
        policies("session,")
