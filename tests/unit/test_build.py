"""The build: it compiles in a copy, and says what it does and why it does not compile."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD: Final = """
import sys
from hatchling.builders.wheel import WheelBuilder
print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=["standard"]))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what the wheel is made of."""
    folder = tmp_path / "source"
    folder.mkdir()
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            path = ROOT / line[1:]
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(path, folder / path.name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(path, folder)
    return folder


def begun(source: Path, asked: str, path: str = os.environ["PATH"]) -> subprocess.Popen[str]:
    """A build of the wheel in a process group of its own."""
    environment = os.environ | {"PENSTOCK_COMPILE": asked, "PATH": path}
    environment |= {"TMPDIR": str(source.parent), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, source, source.parent],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_build_that_is_broken_off_leaves_the_tree_as_it_was(source: Path) -> None:
    before = files(source)
    build = begun(source, "1")
    assert build.stdout is not None
    try:
        assert "compiling" in build.stdout.readline()
    finally:
        os.killpg(build.pid, signal.SIGKILL)
        build.communicate()
    assert {name for name in files(source) - before if "__pycache__" not in name} == set()
    assert before <= files(source)


def test_without_a_compiler_it_says_so(source: Path) -> None:
    told, _ = begun(source, "", path=str(source)).communicate()
    assert "interpreted, because there is no C compiler" in told
    assert "py3-none-any.whl" in told


def test_a_compiler_that_fails_is_told(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cc", "gcc", "clang"):
        compiler = folder / name
        compiler.write_text("#!/bin/sh\necho no room for objects >&2\nexit 1\n")
        compiler.chmod(0o755)
    build = begun(source, "", path=f"{folder}:/usr/bin:/bin")
    told, _ = build.communicate()
    assert build.returncode == 0
    assert "interpreted, because compiling failed" in told
    assert "py3-none-any.whl" in told
    assert not [name for name in files(source) if name.endswith(".so")]
