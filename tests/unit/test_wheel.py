"""The built wheel: one top-level name, the repository's modules, the same from the sdist."""

import shutil
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from penstock import proxy

ROOT = Path(__file__).resolve().parents[2]
LINKS = sorted(path.name for path in (ROOT / "penstock").iterdir() if path.is_symlink())
DIST_INFO = f"penstock-{proxy.__version__}.dist-info"


def wheel(source: Path, folder: Path) -> Path:
    """The wheel without extensions that hatchling builds from a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_COMPILE", "0")
        (built,) = WheelBuilder(str(source)).build(directory=str(folder), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what .dockerignore lets through, so the image's too. COPY keeps links."""
    folder = tmp_path_factory.mktemp("wheel")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            source, target = ROOT / line[1:], folder / line[1:]
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(source, target, symlinks=True, ignore=ignored)
            else:
                shutil.copy(source, target)
    return wheel(folder, folder)


@pytest.fixture(scope="module")
def names(built: Path) -> set[str]:
    with ZipFile(built) as archive:
        return set(archive.namelist())


def test_the_wheel_claims_only_its_own_name(names: set[str]) -> None:
    assert {name.partition("/")[0] for name in names} == {"penstock", DIST_INFO}


def test_the_wheel_has_every_module_of_the_repository_and_no_other(names: set[str]) -> None:
    modules = {"penstock/__init__.py"} | {
        f"penstock/{path.relative_to(ROOT)}"
        for link in LINKS
        for path in (ROOT / link).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules


def test_beside_modules_the_wheel_has_what_users_need(names: set[str]) -> None:
    examples = {
        f"penstock/conf/examples/{path.name}" for path in (ROOT / "conf/examples").iterdir()
    }
    boards = {f"penstock/proxy/boards/{path.name}" for path in (ROOT / "proxy/boards").iterdir()}
    page = {
        f"penstock/proxy/admin/page/static/{path.name}"
        for path in (ROOT / "proxy/admin/page/static").iterdir()
    }
    assert "penstock/proxy/admin/page/static/index.html" in page
    others = {name for name in names if not name.endswith(".py")}
    assert {name for name in others if name.startswith("penstock/")} == {
        "penstock/py.typed",
        "penstock/balancing/_native.pyi",
        "penstock/proxy/commands/alerts.yaml",
        "penstock/proxy/wire/_native.pyi",
        *examples,
        *boards,
        *page,
    }
    assert f"{DIST_INFO}/licenses/LICENSE" in others


def test_the_sdist_has_each_file_once_and_gives_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
        archive.extractall(tmp_path, filter="data")
    assert len(inside) == len(set(inside))
    assert not {name.partition("/")[0] for name in inside} & set(LINKS)
    again = wheel(tmp_path / sdist.removesuffix(".tar.gz").rpartition("/")[2], tmp_path)
    assert again.read_bytes() == built.read_bytes()


def test_every_file_to_compile_exists() -> None:
    """The hook leaves out a name that nothing has, and the file would stay interpreted."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    for pattern in targets["wheel"]["hooks"]["custom"]["include"]:
        assert list(ROOT.glob(pattern.removeprefix("/"))), pattern
