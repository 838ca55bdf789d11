"""Where NVIDIA's Python bindings of DCGM (pydcgm) are, the library that they load, and what its numbers mean.

DCGM installs the bindings as a folder of loose modules that import one another by their bare names; there is no package
to install. A copy of the same modules within a package serves as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
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
# Numbers from these on are blanks: they say why there is no value.
BLANK, BLANK_DOUBLE, BLANK_WORD = 0x7FFFFFFFFFFFFFF0, float(2**47), 0x7FFFFFF0


class StatusCode:
    """DCGM's status codes."""

    NOT_SUPPORTED, TIMEOUT, MISMATCH, NO_DATA, STALE, NOT_WATCHED = -6, -11, -12, -14, -15, -16
    NO_PERMISSION, LOST, RESET_REQUIRED, NO_FUNCTION, GONE = -17, -18, -19, -20, -21
    NO_LIBRARY, DUPLICATE, REQUIRES_ROOT, NO_MODULE, NO_PROFILING, IN_USE = -25, -26, -29, -33, -36, -37


def code_of(error: BaseException) -> int:
    """DCGM's status code of an error that its bindings raised."""
    return int(getattr(error, "value", 0))


def text_of(value: str | bytes) -> str | None:
    """A string of the engine, None for one that says that there is none."""
    text = " ".join((value.decode(errors="replace") if isinstance(value, bytes) else value).split())
    return None if not text or text.startswith("<<<") else text


def scaled(number: int, scale: int = 1) -> int | None:
    """A whole number of the engine in our unit, None where it is a blank of 32 or of 64 bits."""
    return None if number >= BLANK or BLANK_WORD <= number <= BLANK_WORD + 0xF else int(number) * scale


@dataclass(frozen=True)
class Bindings:
    """The modules of pydcgm, and the folder they came from."""

    folder: str
    pydcgm: Any
    agent: Any
    structs: Any

    @property
    def error(self) -> type[Exception]:
        """What a refused call raises; its `value` is DCGM's status code."""
        return self.structs.DCGMError  # type: ignore[no-any-return]

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
                f"DCGM's library libdcgm was not found for the bindings in {self.folder}: install DCGM, or add the "
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
            info = self.structs.c_dcgmVersionInfo_v2()
            info.version = self.structs.dcgmVersionInfo_version2
            call = self.structs._dcgmGetFunctionPointer("dcgmHostengineVersionInfo")
            return None if call(handle, ctypes.byref(info)) else _version(info.rawBuildInfoString)
        except (self.error, AttributeError):
            return None


def _version(built: str | bytes) -> str | None:
    """The version in a text such as "version:4.6.0;arch:x86_64;..."."""
    text = built.decode(errors="replace") if isinstance(built, bytes) else built
    pairs = dict(part.strip().split(":", 1) for part in text.replace("\n", ";").split(";") if ":" in part)
    return pairs.get("version", "").strip() or None


def find_bindings() -> Bindings:
    """The bindings, from WHORL_PYDCGM_PATH, DCGM 4, DCGM 3, or a copy in a package. Raises InputError."""
    chosen = os.environ.get(VARIABLE)
    if chosen and not _holds_bindings(chosen):
        raise InputError(
            f"{VARIABLE} is {chosen}, and there is no pydcgm.py in it: give the folder of DCGM's Python bindings"
        )
    folder = chosen or next(filter(_holds_bindings, FOLDERS), None)
    if folder is not None:
        try:
            return _import_folder(str(Path(folder).resolve()))
        except Exception as error:
            reason = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
            raise InputError(
                f"the DCGM bindings in {folder} cannot be imported: {reason}; give a folder with others in {VARIABLE}"
            ) from error
    try:
        modules = [import_module(f"{PACKAGE}.{name}") for name in _MODULES]
    except ImportError:
        raise InputError(
            f"DCGM's Python bindings (pydcgm) were not found: install DCGM, or give their folder in {VARIABLE}"
        ) from None
    return Bindings(str(Path(str(modules[0].__file__)).parent), *modules)


def _holds_bindings(folder: str) -> bool:
    return (Path(folder) / "pydcgm.py").is_file()


def _import_folder(folder: str) -> Bindings:
    """The loose modules of a folder, which stands at the end of the search path from then on: there it hides nothing.

    Raises ImportError, and whatever the modules raise.
    """
    if folder not in sys.path:
        sys.path.append(folder)
    modules = [import_module(name) for name in _MODULES]
    for module in modules:
        path = Path(str(module.__file__)).resolve()
        if str(path.parent) != folder:
            raise ImportError(f"{path} has the same name as one of its modules and comes first: move it away")
    return Bindings(folder, *modules)
