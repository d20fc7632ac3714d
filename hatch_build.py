"""Compiles the data path when a wheel is built, if there is a C compiler.

mypyc compiles the Python files that pyproject.toml lists, and each folder `c/` becomes the module
`_native` beside it. PENSTOCK_COMPILE=0 compiles nothing. PENSTOCK_COMPILE=1 makes a failure an
error.

Extensions are built beside their sources, and would hide later edits of them. So each build removes
those that it finds, and those of a wheel when the wheel is made. An editable installation is
compiled only with PENSTOCK_COMPILE=1, and keeps them.
"""

import os
import shutil
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "PENSTOCK_COMPILE"
PACKAGES = ("penstock/balancing", "penstock/proxy/wire")


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Decides whether to compile, and tells what became of it."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What compiling takes: mypyc reads the types of what the data path imports."""
        if not self._wanted():
            return []
        return [*self.config["tools"], *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extensions beside their sources, from where the wheel takes them."""
        asked = os.environ.get(VARIABLE) == "1"
        self._clean()
        if not self._wanted() or (version == "editable" and not asked):
            self.app.display_info("penstock: interpreted")
            return
        try:
            self._compile(version, build_data)
        except Exception as error:  # whatever it is, the same files run interpreted
            if asked:
                raise
            self._clean()
            text = f"penstock: interpreted, because compiling failed: {error}"
            self.app.display_warning(text)
            return
        self.app.display_info("penstock: compiled")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is made, with its extensions."""
        if version != "editable":
            self._clean()

    def _wanted(self) -> bool:
        """Whether to try. Raises RuntimeError if it is asked for and there is no compiler."""
        asked = os.environ.get(VARIABLE, "")
        if asked not in ("", "0", "1"):
            raise RuntimeError(f"{VARIABLE} must be 0 or 1, not {asked!r}")
        if asked == "0":
            return False
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        found = shutil.which(compiler) or shutil.which("cc")
        if not found and asked == "1":
            raise RuntimeError(f"{VARIABLE}=1 needs a C compiler ({compiler})")
        return found is not None

    def _compile(self, version: str, build_data: dict[str, Any]) -> None:
        from hatch_mypyc.plugin import MypycBuildHook

        compile_native(Path(self.root))
        mypyc = MypycBuildHook(
            self.root, self.config, self.build_config, self.metadata, self.directory, "wheel"
        )
        mypyc.initialize(version, build_data)
        build_data["artifacts"] += [f"/{package}/_native.*.so" for package in PACKAGES]

    def _clean(self) -> None:
        for folder, _, files in os.walk(Path(self.root, "penstock"), followlinks=True):
            for name in files:
                stem = name.partition(".")[0]
                ours = stem in ("_native", "compiled__mypyc") or f"{stem}.py" in files
                if ours and name.endswith(".so"):
                    os.unlink(Path(folder, name))


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
