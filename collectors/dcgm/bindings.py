"""Where NVIDIA's Python bindings of DCGM (pydcgm) are, and the library that they load.

DCGM installs them as a folder of loose modules that import one another by their bare names; there is no package to
install. A copy of the same modules within a package serves as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import InputError

VARIABLE = "WHORL_PYDCGM_PATH"
FOLDERS = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",  # DCGM 4
    "/usr/local/dcgm/bindings/python3",  # DCGM 2 and 3
)
PACKAGE = "model_analyzer.monitor.dcgm"  # of the PyPI project triton-model-analyzer
_MODULES = ("pydcgm", "dcgm_agent", "dcgm_structs")


@dataclass(frozen=True)
class Bindings:
    """The modules of pydcgm, and the folder they came from."""

    where: str
    pydcgm: Any
    agent: Any
    structs: Any

    @property
    def error(self) -> type[Exception]:
        """What a refused call raises; its `value` is DCGM's status code."""
        found: type[Exception] = self.structs.DCGMError
        return found

    def load(self) -> None:
        """Load libdcgm, once per process. Raises InputError where there is none."""
        for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
            if any(Path(folder).glob("libdcgm.so*")):
                with contextlib.suppress(self.error):  # of another major version: what these bindings want may follow
                    self.structs._dcgmInit(folder)
                    return
        try:
            self.structs._dcgmInit()
        except self.error as error:
            raise InputError(
                f"DCGM's library libdcgm was not found for the bindings in {self.where}: install DCGM, or add the "
                "folder with the library to LD_LIBRARY_PATH"
            ) from error

    def version(self) -> str | None:
        """The version of the library that was loaded; None where it does not tell."""
        try:
            built = self.agent.dcgmVersionInfo().rawBuildInfoString
        except (self.error, AttributeError):
            return None
        return _version(built)

    def engine_version(self, handle: Any) -> str | None:
        """The version of the engine behind a handle; None where it does not tell."""
        try:  # no bindings wrap this call
            told = self.structs.c_dcgmVersionInfo_v2()
            told.version = self.structs.dcgmVersionInfo_version2
            call = self.structs._dcgmGetFunctionPointer("dcgmHostengineVersionInfo")
            return None if call(handle, ctypes.byref(told)) else _version(told.rawBuildInfoString)
        except (self.error, AttributeError):
            return None


def _version(built: str | bytes) -> str | None:
    """The version in a text such as "version:4.6.0;arch:x86_64;..."."""
    text = built.decode(errors="replace") if isinstance(built, bytes) else built
    pairs = dict(part.strip().split(":", 1) for part in text.replace("\n", ";").split(";") if ":" in part)
    return pairs.get("version", "").strip() or None


def find_bindings() -> Bindings:
    """The bindings, from WHORL_PYDCGM_PATH, DCGM 4, DCGM 3, or a copy in a package. Raises InputError."""
    given = os.environ.get(VARIABLE)
    if given:
        if not (Path(given) / "pydcgm.py").is_file():
            raise InputError(
                f"{VARIABLE} is {given}, and there is no pydcgm.py in it: give the folder of DCGM's Python bindings"
            )
        try:
            return _from_folder(given)
        except ImportError as error:
            raise InputError(f"the DCGM bindings in {given} ({VARIABLE}) cannot be imported: {error}") from error
    broken: list[str] = []
    for folder in FOLDERS:
        if (Path(folder) / "pydcgm.py").is_file():
            try:
                return _from_folder(folder)
            except ImportError as error:
                broken.append(f"those in {folder} cannot be imported: {error}")
    try:
        modules = [import_module(f"{PACKAGE}.{name}") for name in _MODULES]
    except ImportError:
        why = "; ".join(broken)
        raise InputError(
            "DCGM's Python bindings (pydcgm) were not found"
            + (f"; {why}" if why else "")
            + f": install DCGM, or give their folder in {VARIABLE}"
        ) from None
    return Bindings(str(Path(str(modules[0].__file__)).parent), *modules)


def _from_folder(folder: str) -> Bindings:
    """The loose modules of a folder. Raises ImportError, and leaves nothing of them behind then."""
    folder = str(Path(folder).resolve())
    with _on_path(folder):
        modules = [import_module(name) for name in _MODULES]
        for module in modules:
            path = Path(str(module.__file__)).resolve()
            if str(path.parent) != folder:
                raise ImportError(f"{path} has the same name as one of its modules and comes first: move it away")
    return Bindings(folder, *modules)


@contextlib.contextmanager
def _on_path(folder: str) -> Iterator[None]:
    """With the folder at the end of the search path, where it hides nothing. It stays there if all went well."""
    before = set(sys.modules)
    added = folder not in sys.path
    if added:
        sys.path.append(folder)
    try:
        yield
    except BaseException as error:
        if added:
            sys.path.remove(folder)
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
        if isinstance(error, ImportError) or not isinstance(error, Exception):
            raise
        raise ImportError(f"{type(error).__name__}: {error}") from error  # they do work when imported
