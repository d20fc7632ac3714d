"""The documents tell what the code has: policies, error codes, commands, the configuration."""

import contextlib
import re
from pathlib import Path

import pytest

from balancing.backend import State
from balancing.policies import POLICIES
from conf.load import load
from health.machine import NEXT, Event
from proxy import errors
from proxy.cli import _parser, _seconds, main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


COMMANDS = ("serve", "check", "status", "drain", "ready", "maint", "demo", "sim", "bench")


def subclasses(of: type[errors.PenstockError]) -> set[type[errors.PenstockError]]:
    return {of}.union(*(subclasses(each) for each in of.__subclasses__()))


@pytest.mark.parametrize("code", sorted({each.code for each in subclasses(errors.PenstockError)}))
def test_every_error_code_is_in_the_readme(code: str) -> None:
    assert f"`{code}`" in README


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_in_the_readme(policy: str) -> None:
    assert f"`{policy}`" in README


def test_the_readmes_configuration_loads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert block.count("\n") <= 10
    path = tmp_path / "penstock.yaml"
    path.write_text(block)
    settings = load(path, {}, {}).settings
    assert [backend.name for backend in settings.pools[0].backends] == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps_and_is_in_the_readme(command: str) -> None:
    assert f"penstock {command}" in README
    assert command in _parser().format_help()


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, "config", "config show", "config schema"],
)
def test_help_has_an_example_and_exit_statuses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"Example: (\w+=\S+ )?penstock {command} ", told), told
    assert "exit status" in told


@pytest.mark.parametrize("timeout", ["nan", "inf", "-1", "1e9", "soon", "2mm", "400d"])
def test_a_wait_ends(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["drain", "gpu-0", "--wait", "--timeout", timeout])
    assert ended.value.code == 2
    assert (
        f"argument --timeout: must be seconds from 0 to 31536000, or such as 5m, got '{timeout}'"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("timeout", ["0", "0s", "0ms"])
def test_a_wait_may_be_none(timeout: str) -> None:
    assert _seconds(timeout) == 0.0


def test_the_readmes_table_of_states_is_the_code() -> None:
    header, *rows = re.findall(
        r"^\| (?:state|`\w+`) \|.*$", README[README.index("### Health") :], re.M
    )
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


def test_the_architecture_stays_short() -> None:
    assert ARCHITECTURE.count("\n") <= 150
