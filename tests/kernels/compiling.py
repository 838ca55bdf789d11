"""Compilers of the tests: NVRTC of CUDA 12 and 13 for CUDA C, the lister of machine code, and a C compiler.

All of them come as wheels, but for the C compiler; none needs a GPU.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CUPYS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")
"""Options with which CuPy compiles."""

NATIVE = Path(__file__).with_name("native")
C_COMPILER = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
VOLTA = 70
"""The oldest architecture that the probes are for."""


class CompileError(Exception):
    """The compiler's words."""


def _in_a_folder_of_its_own(name: str, build: Callable[[Path], object]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"whorl-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build(folder)
    return folder


once: Callable[[str, Callable[[Path], object]], Path] = _in_a_folder_of_its_own
"""Where what was compiled lies: `built_once` of the tests (see conftest.py), so that workers share it."""


@dataclass(frozen=True)
class Compiler:
    """One NVRTC."""

    library: ctypes.CDLL
    version: str
    """As "12.9"."""
    architectures: tuple[int, ...]
    """Those that it compiles for, from Volta on: 70, 75 and so on."""

    def compile(self, text: str, arch: str, defines: Sequence[str] = ()) -> tuple[bytes, str]:
        """PTX (arch 'compute_80') or machine code (arch 'sm_80'), and the compiler's log with the assembler's report.

        Raises CompileError.
        """
        program = ctypes.c_void_p()
        nvrtc = self.library
        assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kern.cu", 0, None, None) == 0
        try:
            options = [*CUPYS, f"--gpu-architecture={arch}", *(f"-D{define}" for define in defines)]
            if arch.startswith("sm_"):
                options.append("--ptxas-options=-v")
            encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            status = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
            log = self._result("ProgramLog", program).rstrip(b"\0").decode()
            if status != 0:
                raise CompileError(log or f"status {status}")
            return self._result("CUBIN" if arch.startswith("sm_") else "PTX", program), log
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _result(self, kind: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        assert getattr(self.library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)) == 0
        result = ctypes.create_string_buffer(size.value)
        assert getattr(self.library, f"nvrtcGet{kind}")(program, result) == 0
        return result.raw


@cache
def compilers() -> tuple[Compiler, ...]:
    """The NVRTC of the wheels, CUDA 12 first; without wheels those that the loader finds."""
    wheels = [
        *_wheel_files("nvidia.cuda_nvrtc", "lib/libnvrtc.so.*"),
        *_wheel_files("nvidia.cu13", "lib/libnvrtc.so.*"),
    ]
    places = sorted(map(str, wheels)) or ["libnvrtc.so.12", "libnvrtc.so.13"]
    usable = []
    for place in places:
        try:
            library = ctypes.CDLL(place)
        except OSError:
            continue
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        library.nvrtcGetSupportedArchs(architectures)
        supported = tuple(architecture for architecture in architectures if architecture >= VOLTA)
        usable.append(Compiler(library, f"{major.value}.{minor.value}", supported))
    return tuple(sorted(usable, key=lambda compiler: float(compiler.version)))


def _wheel_files(package: str, pattern: str) -> list[Path]:
    """Files in a package that a wheel of NVIDIA's installed."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    folders = spec.submodule_search_locations if spec is not None else None
    return [file for folder in folders or () for file in Path(folder).glob(pattern)]


def why_not() -> str:
    """What lacks here to run kernels as the tests do; '' where nothing does."""
    if C_COMPILER is None:
        return "no C compiler (cc, gcc or clang)"
    return "" if compilers() else "no NVRTC here"


@cache
def ptx(text: str, capability: str, defines: tuple[str, ...], version: str | None = None) -> str:
    """The PTX of a source for a compute capability, as "90", by the first compiler or the one of a version.

    Raises CompileError.
    """
    compiler = next(candidate for candidate in compilers() if version in (None, candidate.version))
    key = hashlib.sha256("\0".join([text, compiler.version, capability, *defines]).encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        output, _ = compiler.compile(text, f"compute_{capability}", defines)
        (folder / "module.ptx").write_bytes(output.rstrip(b"\0"))

    return (once(f"ptx-{key}", build) / "module.ptx").read_text()


# -- machine code


@dataclass(frozen=True)
class MachineInstruction:
    """One instruction of a GPU's own code, as `@P0 LDG.E.128 R4, desc[UR4][R2.64] ;`."""

    operation: str
    """As "LDG.E.128"."""
    operands: tuple[str, ...]

    @property
    def read(self) -> tuple[int, ...]:
        """Numbers of the registers that it reads, in order, but for those of addresses; it writes the first operand."""
        plain = [re.fullmatch(r"[-|~]*R(\d+)(?:\.\w+)*\|?", operand) for operand in self.operands[1:]]
        return tuple(int(register[1]) for register in plain if register)


def why_no_listing() -> str:
    """What lacks here to list machine code; '' where nothing does."""
    return "" if compilers() and _lister() else "no NVRTC or no nvdisasm here"


@cache
def _lister() -> str | None:
    files = _wheel_files("nvidia.cu13", "bin/nvdisasm")
    return str(files[0]) if files else shutil.which("nvdisasm")


_FUNCTION = re.compile(r"^\.text\.(\S+):$")
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")


def listing(code: bytes) -> dict[str, list[MachineInstruction]]:
    """Machine code by function, in order, as nvdisasm lists it."""
    lister = _lister()
    assert lister is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([lister, "-c", file.name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    functions: dict[str, list[MachineInstruction]] = {}
    name = ""
    for line in done.stdout.splitlines():
        if begins := _FUNCTION.match(line.strip()):
            name = begins[1]
            functions[name] = []
        elif match := _LINE.search(line):
            operands = tuple(operand.strip() for operand in match[2].split(",")) if match[2] else ()
            functions[name].append(MachineInstruction(match[1], operands))
    return functions


def operations(instructions: Sequence[MachineInstruction]) -> Counter[str]:
    """How often each operation stands in the code."""
    return Counter(instruction.operation for instruction in instructions)


# -- C


@cache
def c_library(name: str) -> ctypes.CDLL:
    """A C file of tests/kernels/native as a shared library, loaded."""
    return ctypes.CDLL(str(c_library_file(name)))


def c_library_file(name: str) -> Path:
    """A C file of tests/kernels/native as a shared library."""

    def build(folder: Path) -> None:
        assert C_COMPILER is not None, f"no C compiler (cc, gcc or clang) to build {name} with"
        flags = ["-std=gnu11", "-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        flags += ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"] if name == "cublas.c" else []
        command = [C_COMPILER, *flags, "-o", str(folder / f"{name}.so"), str(NATIVE / name), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return once(name.removesuffix(".c"), build) / f"{name}.so"
