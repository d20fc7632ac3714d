"""The direction of imports and the purity of the balancing, read from the syntax trees."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("conf", "balancing", "health", "proxy", "bench")
MAY_IMPORT = {
    "conf": {"conf"},
    "balancing": {"balancing", "conf"},
    "health": {"health", "balancing", "conf"},
    "proxy": {"proxy", "health", "balancing", "conf"},
    "bench": {"bench", "balancing", "conf"},  # experiments run the real decisions
}
# Lazily, and only for the commands that need simulated servers or the benchmarks.
MAY_IMPORT_BENCH = {"proxy/cli.py", "proxy/demo.py"}
IMPURE = {"asyncio", "aiohttp", "time", "logging", "os", "socket", "threading", "datetime"}
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module named by an import statement of the file, at any depth."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    allowed = set(MAY_IMPORT[path.relative_to(ROOT).parts[0]])
    if name in MAY_IMPORT_BENCH:
        allowed.add("bench")
    ours = {module.split(".")[0] for module in imported(path)} & set(PACKAGES)
    assert ours <= allowed, f"{name} imports {ours - allowed}"


@pytest.mark.parametrize("path", sorted((ROOT / "balancing").rglob("*.py")), ids=lambda p: p.name)
def test_the_balancing_is_pure(path: Path) -> None:
    assert not {module.split(".")[0] for module in imported(path)} & IMPURE
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Await), f"{path.name} awaits"
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            assert [alias.name for alias in node.names] == ["Random"], "only the type, as argument"
        if isinstance(node, ast.Import):
            assert "random" not in {alias.name for alias in node.names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= 70, f"{path.name}: {node.name} has {lines} lines"


def test_the_walk_sees_the_whole_project() -> None:
    assert len(FILES) > 40
    assert "asyncio" in imported(ROOT / "proxy" / "app.py")
