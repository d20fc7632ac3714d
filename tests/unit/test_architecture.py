"""The direction of imports and the purity of the balancing, read from the syntax trees."""

import ast
from pathlib import Path

import pytest

from penstock.conf.kinds import POLICY_NAMES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("conf", "balancing", "health", "proxy", "bench")
MAY_IMPORT = {
    "conf": {"conf"},
    "balancing": {"balancing", "conf"},
    "health": {"health", "balancing", "conf"},
    "proxy": {"proxy", "health", "balancing", "conf"},
    "bench": {"bench", "balancing", "conf"},  # experiments run the real decisions
}
# The rooms of `proxy`, lowest first: each may import itself and those before it.
ROOMS = (
    "errors",
    "wire",
    "dialects",
    "telemetry",
    "tracing",
    "data",
    "discovery",
    "reload",
    "admin",
    "process",
    "app",
    "commands",
)
# Lazily, and only for the commands that need simulated servers or the benchmarks.
MAY_IMPORT_BENCH = {
    "proxy/commands/cli.py",
    "proxy/commands/demo.py",
}
IMPURE = {"asyncio", "aiohttp", "time", "logging", "os", "socket", "threading", "datetime"}
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module named by an import statement of the file, at any depth; ours without `penstock.`

    What `from package import module` takes counts as the module.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names.add(module)
            if module.split(".")[0] == "penstock":
                names |= {f"{module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("penstock.") for name in names}


def module_of(path: Path) -> str:
    """The module's name without `penstock.`; a package goes by its own."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    allowed = set(MAY_IMPORT[path.relative_to(ROOT).parts[0]])
    if name in MAY_IMPORT_BENCH:
        allowed.add("bench")
    ours = {module.split(".")[0] for module in imported(path)} & set(PACKAGES)
    assert ours <= allowed, f"{name} imports {ours - allowed}"


def test_ours_are_imported_by_one_name() -> None:
    """A module of a second name would be a second module, with a state of its own."""
    for path in (*FILES, *(ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in PACKAGES, path
            elif isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & set(PACKAGES), path


def room_of(module: str) -> str | None:
    """The room of `proxy` that a module is in; None for the package itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "proxy" and len(parts) > 1 and parts[1] in ROOMS else None


@pytest.mark.parametrize("path", sorted((ROOT / "proxy").rglob("*.py")), ids=module_of)
def test_rooms_of_the_proxy_know_only_those_below(path: Path) -> None:
    room = room_of(module_of(path))
    if room is None:
        assert path.name in ("__init__.py", "__main__.py")
        return
    known = {of for module in imported(path) if (of := room_of(module)) is not None}
    above = [each for each in known if ROOMS.index(each) > ROOMS.index(room)]
    assert not above, f"{module_of(path)} imports of {above}"
    if room == "wire":  # bytes know nothing of health
        assert not any(module.startswith("health") for module in imported(path))


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for types count: who must be read to understand a module is one of its imports."""
    ways = {
        module: {each for each in imported(path) if each in MODULES and each != module}
        for module, path in MODULES.items()
    }
    while True:  # take away whatever imports nothing that is left
        free = [module for module, known in ways.items() if not known & set(ways)]
        if not free:
            break
        for module in free:
            del ways[module]
    # What only leads into a circle is left too: take away what nothing left imports.
    while outer := set(ways) - {each for known in ways.values() for each in known}:
        for module in outer:
            del ways[module]
    assert not ways, sorted(ways)


@pytest.mark.parametrize("path", sorted((ROOT / "balancing").rglob("*.py")), ids=lambda p: p.name)
def test_the_balancing_is_pure(path: Path) -> None:
    assert not {module.split(".")[0] for module in imported(path)} & IMPURE
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Await), f"{path.name} awaits"
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            assert [alias.name for alias in node.names] == ["Random"], "only the type, as argument"
        if isinstance(node, ast.Import):
            assert "random" not in {alias.name for alias in node.names}


RUNTIME = [
    path for path in FILES if path.relative_to(ROOT).parts[0] in ("balancing", "health", "proxy")
]


@pytest.mark.parametrize(
    "path",
    # Imports translate the names that others have for them.
    [path for path in RUNTIME if path.parent.name not in ("policies", "imports")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_no_policy_is_known_by_name(path: Path) -> None:
    """What a policy needs, remembers and tells is on its contract."""
    known = {of for of in imported(path) if of.startswith("balancing.policies.")}
    assert known <= {
        "balancing.policies.POLICIES",
        "balancing.policies.policy",
        *(f"balancing.policies.policy.{name}" for name in ("Policy", "Part", "Explanation")),
    }
    texts = {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    }
    # Other things are called `session` and `random` too.
    assert not texts & ({*POLICY_NAMES} - {"session", "random"})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_stay_small(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= 70, f"{path.name}: {node.name} has {lines} lines"


def test_the_walk_sees_the_whole_project() -> None:
    assert len(FILES) > 40
    assert "asyncio" in imported(ROOT / "proxy" / "app.py")
