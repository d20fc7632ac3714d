"""Compiles the data path when a wheel is built, if there is a C compiler.

mypyc compiles the Python files that pyproject.toml lists, and each folder `c/` becomes the module
`_native` beside it. PENSTOCK_COMPILE=0 compiles nothing. PENSTOCK_COMPILE=1 makes a failure an
error.

All of this happens in a copy, so a build that is broken off leaves the sources as they are. A wheel
takes the extensions from there. Only an editable installation with PENSTOCK_COMPILE=1 puts them
beside the sources, where they hide later edits. The next editable installation removes them.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "PENSTOCK_COMPILE"
PACKAGES = ("penstock/balancing", "penstock/proxy/wire")
# Run in the copy, which has no pyproject.toml: setuptools would read it. Each module is a C file of
# its own, and all cores compile: one file with all of them would take one core four times as long.
SETUP = """
from setuptools import setup
from mypyc.build import mypycify
from pybind11.setup_helpers import ParallelCompile
ParallelCompile("PENSTOCK_COMPILE_JOBS", max=8).install()
setup(name="penstock", ext_modules=mypycify({arguments!r}, multi_file=True, **{options!r}))
"""
# mypyc puts the common header where the name of the extension says, and includes it without that.
# Nobody else calls the functions, so calls between modules need no look at a table.
FLAGS = "-Ibuild/penstock -fvisibility=hidden"


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Decides whether to compile, and tells what became of it."""

    PLUGIN_NAME = "custom"
    _copy: TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """What compiling takes: mypyc reads the types of what the data path imports."""
        if self._why_not():
            return []
        return [*self.config["tools"], *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extensions, and tell what became of it."""
        asked = os.environ.get(VARIABLE) == "1"
        editable = version == "editable"
        if editable:
            self._clean()
        if os.environ.get(VARIABLE) == "0" or (editable and not asked):
            self.app.display_info("penstock: interpreted")
            return
        if why_not := self._why_not():
            self._say(f"interpreted, because {why_not}")
            return
        self._say("compiling the data path, which takes a few minutes")
        try:
            self._compile(build_data, editable=editable)
        except Exception as error:  # whatever it is, the same files run interpreted
            if asked:
                raise
            self._say(f"interpreted, because compiling failed: {error}")
            return
        self._say("compiled")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is made, with its extensions."""
        if self._copy is not None:
            self._copy.cleanup()

    def _say(self, text: str) -> None:
        """Tell whoever builds. pip hides what a build prints, so the terminal gets a line, too."""
        self.app.display_info(f"penstock: {text}")
        if not sys.stdout.isatty():
            with suppress(OSError), open("/dev/tty", "w") as terminal:
                terminal.write(f"\npenstock: {text.splitlines()[0]}\n")

    def _why_not(self) -> str:
        """Why nothing is compiled. Empty if it is.

        Raises RuntimeError if it is asked for and there is no compiler.
        """
        asked = os.environ.get(VARIABLE, "")
        if asked not in ("", "0", "1"):
            raise RuntimeError(f"{VARIABLE} must be 0 or 1, not {asked!r}")
        if asked == "0":
            return f"{VARIABLE} is 0"
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        found = shutil.which(compiler) or shutil.which("cc")
        if not found and asked == "1":
            raise RuntimeError(f"{VARIABLE}=1 needs a C compiler ({compiler})")
        if found:
            return ""
        return f"there is no C compiler ({compiler}); this needs up to 2.5 times the CPU"

    def _compile(self, build_data: dict[str, Any], *, editable: bool) -> None:
        """Compile in a copy of the package. Raises whatever went wrong."""
        self._copy = TemporaryDirectory(prefix="penstock-build-")
        copy = Path(self._copy.name)
        left_out = shutil.ignore_patterns("__pycache__", "*.so", "bench")
        shutil.copytree(Path(self.root, "penstock"), copy / "penstock", ignore=left_out)
        files = {
            str(path.relative_to(copy))
            for pattern in self.config["include"]
            for path in copy.glob(pattern.removeprefix("/"))
        }
        compile_native(copy)
        compile_python(copy, [*self.config["mypy-args"], *sorted(files)], self.config["options"])
        for path in sorted((copy / "penstock").rglob("*.so")):
            name = str(path.relative_to(copy))
            if editable:
                shutil.copy2(path, Path(self.root, name))
            else:
                build_data["force_include"][str(path)] = name
        build_data["infer_tag"] = True
        build_data["pure_python"] = False

    def _clean(self) -> None:
        for folder, _, files in os.walk(Path(self.root, "penstock"), followlinks=True):
            for name in files:
                stem = name.partition(".")[0]
                ours = stem in ("_native", "compiled__mypyc") or f"{stem}.py" in files
                if ours and name.endswith(".so"):
                    os.unlink(Path(folder, name))


def compile_python(root: Path, arguments: list[str], options: dict[str, str]) -> None:
    """Compile files by mypyc, beside their sources. Raises RuntimeError with what it printed."""
    code = SETUP.format(arguments=arguments, options=options)
    done = subprocess.run(  # noqa: S603 - our own code, by this interpreter
        [sys.executable, "-c", code, "build_ext", "--inplace"],
        cwd=root,
        env=os.environ | {"CFLAGS": f"{FLAGS} {os.environ.get('CFLAGS', '')}"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise RuntimeError(f"mypyc:\n{done.stdout}")


def compile_native(root: Path) -> None:
    """Compile each C module beside the folder of its sources. Raises what setuptools raises."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    options = ["-O3", "-std=c11"]
    modules = [
        Extension(
            f"{package.replace('/', '.')}._native",
            [str(root / package / "c" / "module.c")],
            extra_compile_args=options,
        )
        for package in PACKAGES
    ]
    command = build_ext(Distribution({"name": "penstock", "ext_modules": modules}))
    command.build_lib = str(root)
    with TemporaryDirectory() as folder:
        command.build_temp = folder
        command.ensure_finalized()
        command.run()
