"""Builds one of our modules in C, so that every run of the tests tries it, interpreted or not."""

import shutil
import subprocess
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = sysconfig.get_path("include")
COMPILER = shutil.which("cc") if Path(INCLUDE, "Python.h").exists() else None


def c_module(package: str, folder: Path, *options: str) -> ModuleType:
    """The module of `package`, such as "proxy/wire", built in `folder`."""
    target = folder / "_native.so"
    usual = ["-std=c11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    source = ROOT / package / "c" / "module.c"
    subprocess.run(
        [str(COMPILER), *usual, *options, f"-I{INCLUDE}", str(source), "-o", str(target)],
        check=True,
    )
    loader = ExtensionFileLoader(f"penstock.{package.replace('/', '.')}._native", str(target))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
