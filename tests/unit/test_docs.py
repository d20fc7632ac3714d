"""The documents tell what the code has: policies, error codes, commands, the configuration."""

import argparse
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.balancing.backend import State
from penstock.balancing.lease import Reason
from penstock.balancing.policies import POLICIES
from penstock.bench.cli import COMMANDS as BENCHMARKS
from penstock.bench.sim.cli import _parser as _sim_parser
from penstock.bench.sim.profiles import PROFILES
from penstock.conf.load import load
from penstock.health.machine import NEXT, Event
from penstock.proxy.commands.cli import _parser, _seconds, main
from penstock.proxy.commands.fleet_table import COLUMNS
from penstock.proxy.errors.error import PenstockError

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}

COMMANDS = ("serve", "check", "status", "drain", "ready", "maint", "demo", "sim", "bench")
# What the configurations in the pages name; `load` reads the secrets of it.
FILES = (
    *(
        "keys/research",
        "admin-token",
        "view-token",
        "vllm-key",
        "tls.crt",
        "tls.key",
        "clients.crt",
    ),
    *("ca.crt", "penstock.crt", "penstock.key"),
)
KEY = "0123456789abcdef0123456789abcdef"
POOL = """
pools:
  - name: chat
    backends: [{name: gpu-0, url: "http://10.0.0.1:8000"}]
"""


def page(name: str) -> str:
    return PAGES[f"docs/{name}.md"]


def first_cells(text: str) -> set[str]:
    """What stands in code in the first column of a page's tables."""
    cells = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def code(text: str) -> str:
    """What may be typed: blocks of shell, and code in the text."""
    found = re.findall(r"```(?:sh|console)\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    return "\n".join(block + span for block, span in found)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """(page, text) of every block of a language."""
    for name, text in PAGES.items():
        for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            yield name, block


def subclasses(of: type[PenstockError]) -> set[type[PenstockError]]:
    return {of}.union(*(subclasses(each) for each in of.__subclasses__()))


ERRORS = sorted({(each.code, each.status) for each in subclasses(PenstockError)})


@pytest.mark.parametrize(("code", "status"), ERRORS)
def test_every_error_is_told_with_its_status(code: str, status: int) -> None:
    rows = re.findall(rf"^\| `{code}` \| ([^|]+) \|", page("http"), re.MULTILINE)
    told = {int(number) for row in rows for number in re.findall(r"\d+", row)}
    assert status in told or (code == "stream_broken" and rows == ["in the stream"])


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_told(policy: str) -> None:
    assert policy in first_cells(page("policies"))


def test_every_reason_of_a_choice_is_told() -> None:
    assert {each.value for each in Reason} <= first_cells(page("policies"))


def test_every_state_of_health_is_told() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", page("health"), re.MULTILINE)
    assert {each.value for each in (*State, *Event)} <= set(rows)


@pytest.mark.parametrize(("name", "block"), list(blocks("yaml")))
def test_every_configuration_loads(name: str, block: str, tmp_path: Path) -> None:
    """A YAML block is penstock's; one without pools is a part of a configuration."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(KEY)
    (tmp_path / "keys" / "otlp-headers").write_text(f"authorization: Bearer {KEY}\n")
    path = tmp_path / "penstock.yaml"
    path.write_text(block if re.search("^pools:", block, re.MULTILINE) else block + POOL)
    load(path, dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), KEY), {})


@pytest.mark.parametrize(("name", "block"), list(blocks("python")))
def test_every_snippet_is_python(name: str, block: str) -> None:
    compile(block, name, "exec")


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


PARSERS = subparsers(_parser()) | {"sim": _sim_parser()}


@pytest.mark.parametrize("name", PAGES)
def test_every_command_that_is_named_exists(name: str) -> None:
    for line in re.findall(r"(?:^|\$ |\s)penstock ([a-z].*)", code(PAGES[name]), re.MULTILINE):
        words = line.partition("#")[0].split()
        assert words[0] in PARSERS, line
        if words[0] == "bench":
            assert len(words) == 1 or words[1] in {*BENCHMARKS, "--help"}, line
            continue
        parser = PARSERS[words[0]]
        if words[0] in ("config", "import") and len(words) > 1:
            parser = subparsers(parser)[words[1]]
        for flag in [word for word in words if word.startswith("--")]:
            assert flag in parser.format_help(), line


@pytest.mark.parametrize("command", [*COMMANDS, "config", "explain", "import"])
def test_every_command_helps_and_is_told(command: str) -> None:
    assert f"penstock {command} " in page("operations")
    assert command in _parser().format_help()


def test_every_column_of_the_status_is_told() -> None:
    assert {each.head for each in COLUMNS} - {"BACKEND", "POOL"} <= first_cells(page("operations"))


def test_every_flag_of_the_simulation_is_told_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| ([^|]+) \|", page("simulation"), re.MULTILINE))
    options = [each for each in _sim_parser()._actions if each.dest != "help"]
    assert {each.option_strings[0] for each in options} == rows.keys()
    for each in options:
        told = rows[each.option_strings[0]].strip("` ").replace(",", "")
        if each.default is False:
            assert told == "off"
        elif isinstance(each.default, int | float):
            assert float(told) == each.default, each.dest
        elif each.default is not None:
            assert told == each.default
    assert f"{PROFILES['default'].kv_tokens:,}" in rows["--kv-tokens"]


@pytest.mark.parametrize("name", PAGES)
def test_every_target_of_make_that_is_named_exists(name: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)", code(PAGES[name]), re.MULTILINE)) <= set(targets)


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, "config", "config show", "config schema", "import litellm", "import nginx"],
)
def test_help_has_an_example_and_exit_statuses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"Example: (\w+=\S+ )?penstock {command} ", told), told
    assert "exit status" in told.lower()


@pytest.mark.parametrize("timeout", ["nan", "inf", "-1", "1e9", "soon", "2mm", "400d"])
def test_a_wait_ends(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["drain", "gpu-0", "--wait", "--timeout", timeout])
    assert ended.value.code == 2
    assert (
        "argument --timeout: must be seconds from 0 to 31536000, or a duration such as 5m, "
        f"got '{timeout}'" in capsys.readouterr().err
    )


@pytest.mark.parametrize("timeout", ["0", "0s", "0ms"])
def test_a_wait_may_be_none(timeout: str) -> None:
    assert _seconds(timeout) == 0.0


def test_the_table_of_states_is_the_code() -> None:
    table = page("health")[page("health").index("| state | `passed`") :]
    header, *rows = re.findall(r"^\| (?:state|`\w+`) \|.*$", table, re.M)
    events = [Event(name) for name in re.findall(r"`(\w+)`", header)]
    told: dict[tuple[State, Event], State] = {}
    for row in rows[: len(State)]:
        name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        told |= {
            (State(name.strip("`")), event): State(cell)
            for event, cell in zip(events, cells, strict=True)
            if cell
        }
    assert told == dict(NEXT)


def test_every_file_of_the_codemap_exists() -> None:
    codemap = ARCHITECTURE[ARCHITECTURE.index("## Codemap") : ARCHITECTURE.index("## Invariants")]
    for row in re.findall(r"^\| (.*?) \|", codemap, re.MULTILINE)[1:]:
        folder = ""
        for name in re.findall(r"`([^`]+)`", row):
            path = name if "/" in name else f"{folder}/{name}"
            folder = path.rpartition("/")[0]
            if name.endswith("/"):
                folder = path.rstrip("/").rpartition("/")[0]
            assert (ROOT / path).exists(), path
