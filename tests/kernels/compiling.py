"""NVRTC through ctypes: CUDA C to PTX, or to machine code with the assembler's report, on any machine.

Machine code is looked into without a disassembler, as far as the chains need it: an instruction of Volta to Hopper has
16 bytes, the operation in the lowest 9 bits, the form of its operands in the next 3, registers in whole bytes. That
was compared with what nvdisasm says of the same code.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib.util
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CUPYS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")
"""Options with which CuPy compiles."""


@cache
def library() -> ctypes.CDLL | None:
    """The wheel's library, or one that the loader finds; None where there is none."""
    places: list[str] = []
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        found = None
    if found is not None and found.submodule_search_locations:
        for folder in found.submodule_search_locations:
            places += sorted(str(file) for file in Path(folder, "lib").glob("libnvrtc.so.*"))
    for place in [*places, "libnvrtc.so.12", "libnvrtc.so.13"]:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


def _in_a_folder_of_its_own(name: str, build: Callable[[Path], object]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"whorl-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build(folder)
    return folder


once: Callable[[str, Callable[[Path], object]], Path] = _in_a_folder_of_its_own
"""Where what was compiled lies: `built_once` of the tests (see conftest.py), so that workers share it."""

NATIVE = Path(__file__).with_name("native")
C_COMPILER = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


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


def why_not() -> str:
    """What lacks here to run kernels as the tests do; '' where nothing does."""
    if C_COMPILER is None:
        return "no C compiler (cc, gcc or clang)"
    return "" if library() is not None else "no NVRTC here"


@cache
def ptx(text: str, capability: str, defines: tuple[str, ...]) -> str:
    """The PTX of a source for a compute capability, as "90". CompileError in the compiler's words."""
    key = hashlib.sha256("\0".join([text, capability, *defines]).encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        (folder / "module.ptx").write_text(compiled(text, f"compute_{capability}", defines)[0])

    return (once(f"ptx-{key}", build) / "module.ptx").read_text()


class CompileError(Exception):
    """The compiler's words."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of three operands."""

    operation: int
    registers: tuple[int, ...]
    """Those that it reads; the zero register is none."""


MULTIPLY_ADDS = {0x023: "FFMA", 0x024: "IMAD", 0x02B: "DFMA", 0x031: "HFMA2", 0x035: "HFMA2.MMA"}
"""By the operation."""

_NO_REGISTER = 255
_ALL_REGISTERS = 1
"""Form of operands of which the second is a register too; in the others it is a constant, whatever holds that."""


def compiled(text: str, arch: str, defines: Sequence[str] = ()) -> tuple[str, str]:
    """PTX (arch 'compute_80') or nothing (arch 'sm_80', machine code), and the compiler's log."""
    output, log = _compiled(text, arch, defines)
    return ("" if arch.startswith("sm_") else output.rstrip(b"\0").decode()), log


def instructions(text: str, arch: str, defines: Sequence[str], function: str) -> list[Instruction]:
    """The machine code of a function (arch 'sm_80'), in order."""
    code = _section(_compiled(text, arch, defines)[0], f".text.{function}")
    found = []
    for low, high in struct.iter_unpack("<QQ", code):
        bytes_of = (low >> 24 & 255, low >> 32 & 255, high & 255)
        read = bytes_of if low >> 9 & 7 == _ALL_REGISTERS else bytes_of[::2]
        found.append(Instruction(low & 0x1FF, tuple(each for each in read if each != _NO_REGISTER)))
    return found


def _section(elf: bytes, name: str) -> bytes:
    """A section of an object file of 64 bits."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * i) for i in range(count)]
    for named, _, _, _, begin, length in headers:
        at = headers[names][4] + named
        if elf[at : elf.index(b"\0", at)].decode() == name:
            return elf[begin : begin + length]
    raise AssertionError(f"no section {name}")


def _compiled(text: str, arch: str, defines: Sequence[str]) -> tuple[bytes, str]:
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kern.cu", 0, None, None) == 0
    try:
        options = [*CUPYS, f"--gpu-architecture={arch}", *(f"-D{define}" for define in defines)]
        if arch.startswith("sm_"):
            options.append("--ptxas-options=-v")
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
        log = _held(nvrtc, "ProgramLog", program).rstrip(b"\0").decode()
        if status != 0:
            raise CompileError(log or f"status {status}")
        return _held(nvrtc, "CUBIN" if arch.startswith("sm_") else "PTX", program), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _held(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    held = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, held) == 0
    return held.raw
