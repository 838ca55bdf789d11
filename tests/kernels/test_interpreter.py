"""The interpreter of PTX: what instructions compute, and what a source must not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.tests.kernels import compiling
from whorl.tests.kernels.device_memory import Allocation, Fault
from whorl.tests.kernels.interpreter import Memory, Module, Shape, run_kernel

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())

VERSIONS = [compiler.version for compiler in compiling.compilers()]


def run(code: str, grid: int, block: int, *arrays: NDArray[Any], version: str | None = None) -> list[NDArray[Any]]:
    """What `extern "C" __global__ void kernel(...)` of a source leaves in its arrays. SMs: four."""
    memory = Memory()
    held = [memory.holding(array) for array in arrays]
    _run(code, grid, block, memory, held, version=version)
    return [allocation.view(array.dtype)[: array.size] for allocation, array in zip(held, arrays, strict=True)]


def _run(
    code: str, grid: int, block: int, memory: Memory, held: list[Allocation], *, version: str | None = None
) -> None:
    module = Module(compiling.ptx(code, "90", (), version), memory)
    arguments = [np.uint64(allocation.base) for allocation in held]
    run_kernel(module, "kernel", Shape((grid, 1, 1), (block, 1, 1)), arguments, sms=4)


# -- instructions

EXPRESSIONS: dict[str, Callable[[int, int, int], int]] = {
    "(word)((int)a % (int)b)": lambda a, b, c: abs(_signed(a)) % abs(_signed(b)) * (1 if _signed(a) >= 0 else -1),
    "a / b": lambda a, b, c: a // b,
    "(word)((int)a >> (c & 31u))": lambda a, b, c: _signed(a) >> (c & 31),
    "a << (c & 31u)": lambda a, b, c: a << (c & 31),
    "(word)__ffs((int)a)": lambda a, b, c: (a & -a).bit_length(),
    "(word)__popc(a)": lambda a, b, c: a.bit_count(),
    "__brev(a)": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "__byte_perm(a, b, 0x6250)": lambda a, b, c: a & 255 | (b >> 8 & 255) << 8 | (a & 0xFF0000) | (b >> 16 & 255) << 24,
    "(word)min((int)a, (int)b)": lambda a, b, c: min(_signed(a), _signed(b)),
    "max(a, b) ^ (a & b | ~c)": lambda a, b, c: max(a, b) ^ (a & b | ~c),
    "(a >> 5 & 0x7ffu)": lambda a, b, c: a >> 5 & 0x7FF,
    "(word)(signed char)(a >> 3)": lambda a, b, c: (a >> 3 & 255 ^ 128) - 128,
    "(word)((u64)a * b + c >> 13)": lambda a, b, c: a * b + c >> 13,
    "(word)__float2int_rn((float)(int)a)": lambda a, b, c: min(int(np.float32(_signed(a))), 2**31 - 1),
    "__float_as_uint(__fmaf_rn((float)(a & 0xffffu), 0.1f, (float)b))": lambda a, b, c: _bits(
        np.float32(np.longdouble(a & 0xFFFF) * np.longdouble(np.float32(0.1)) + np.longdouble(np.float32(b)))
    ),
    "__float_as_uint(sqrtf((float)a) / 7.0f)": lambda a, b, c: _bits(np.sqrt(np.float32(a)) / np.float32(7)),
    "__float_as_uint(__fadd_rd((float)a, 0.3f))": lambda a, b, c: _bits(
        _down(float(np.float32(a)) + float(np.float32(0.3)))
    ),
    "__float_as_uint(fminf(fmaxf((float)(int)a, -5.0f), 1e6f))": lambda a, b, c: _bits(
        min(max(np.float32(_signed(a)), np.float32(-5)), np.float32(1e6))
    ),
    "(word)(a < b ? c : (a == b ? 1u : (word)(c > a)))": lambda a, b, c: c if a < b else 1 if a == b else int(c > a),
}
"""CUDA C of the words a, b and c, of which b is not 0, and what it must give, modulo 2^32."""


def _signed(x: int) -> int:
    return x - 2**32 if x >> 31 else x


def _bits(value: Any) -> int:
    return int(np.float32(value).view(np.uint32))


def _down(value: float) -> np.float32:
    """Rounded to fp32 towards minus infinity."""
    nearest = np.float32(value)
    return nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf))


@pytest.mark.parametrize("version", VERSIONS)
def test_operations_give_what_c_says(version: str) -> None:
    draw = np.random.default_rng(1)
    edges = np.array([0, 1, 2, 31, 32, 255, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1], np.uint32)
    a, b, c = (np.concatenate([draw.permutation(edges), draw.integers(0, 2**32, 54, np.uint32)]) for _ in range(3))
    b[b == 0] = 3
    b[(a == 2**31) & (b == 2**32 - 1)] = 5  # the one quotient that C does not define
    lines = "\n".join(f"out[{i} * 64 + t] = {expression};" for i, expression in enumerate(EXPRESSIONS))
    code = f"""typedef unsigned int word; typedef unsigned long long u64;
        extern "C" __global__ void kernel(const word* x, const word* y, const word* z, word* out) {{
            const int t = threadIdx.x; const word a = x[t], b = y[t], c = z[t];
            {lines}
        }}"""
    *_, out = run(code, 1, 64, a, b, c, np.zeros(64 * len(EXPRESSIONS), np.uint32), version=version)
    for i, (expression, right) in enumerate(EXPRESSIONS.items()):
        expected = [right(*map(int, words)) % 2**32 for words in zip(a, b, c, strict=True)]
        assert out[64 * i : 64 * i + 64].tolist() == expected, expression


@pytest.mark.parametrize("version", VERSIONS)
def test_threads_of_a_warp_give_what_they_have_to_others(version: str) -> None:
    code = """extern "C" __global__ void kernel(unsigned int* out) {
        const unsigned int t = threadIdx.x;
        out[t] = __shfl_down_sync(0xffffffffu, t, 2, 8);
        out[64 + t] = t & 1u ? __shfl_down_sync(0xaaaaaaaau, t, 2) : 77u;
    }"""
    (out,) = run(code, 1, 64, np.zeros(128, np.uint32), version=version)
    t = np.arange(64)
    assert out[:64].tolist() == np.where(t % 8 < 6, t + 2, t).tolist()
    assert out[64:].tolist() == np.where(t % 2, np.where(t % 32 < 30, t + 2, t), 77).tolist()


# -- defects of a source

FAULTY = {
    "a read out of bounds": (
        "if (t < 33) out[t] = in[t + 32];",
        r"kernel, block 1, thread 0: out of bounds: 256 bytes into .* at 0x[0-9a-f]+: ld\.global",
    ),
    "a write out of bounds": ("out[t + 1] = in[t];", r"block 1, thread 31: out of bounds: 256 bytes into .*st\.global"),
    "a read of what nothing wrote": ("out[t] = out[t ^ 1] + in[t];", "block 0, thread 0: reads what nothing wrote"),
    "shared memory that nothing wrote": (
        "__shared__ word s[64]; s[threadIdx.x] = in[t]; __syncthreads(); out[t] = s[threadIdx.x + 1];",
        r"thread 31: reads what nothing wrote: shared .*ld\.shared",
    ),
    "a barrier that is missing": (
        "__shared__ word s[32]; s[threadIdx.x] = in[t]; out[t] = s[threadIdx.x ^ 16u];",
        "races with another thread for shared memory",
    ),
    "a barrier between blocks that is missing": (
        "out[t] = in[t]; __syncthreads(); in[(t + 32u) % 64u] += 1u;",
        r"block 0, thread 0 and block 1, thread 0 race for .*0x[0-9a-f]+\): ld\.global.*, st\.global",
    ),
    "a vector load that is misaligned": (
        "const uint4 v = *(const uint4*)(in + (t & 31u)); out[t] = v.x + v.y + v.z + v.w;",
        r"thread 1: misaligned access of 16 bytes.*ld\.global",
    ),
    "a lane that does not take part in a shuffle": (
        "if (t & 1u) out[t] = __shfl_down_sync(0xaaaaaaaau, in[t], 1);",
        "thread 1: reads lane 2, which does not take part",
    ),
    "a barrier that some threads never reach": (
        "if (threadIdx.x < 16u) __syncthreads(); while (threadIdx.x > 30u) out[0] = atomicAdd(in, 0u);",
        "does not come to an end",
    ),
}
"""Body of a kernel of two blocks of 32 threads over 64 words in and out, and what is said of it."""


@pytest.mark.parametrize("defect", FAULTY)
def test_a_defect_of_a_source_is_a_fault_that_names_it(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whorl.tests.kernels.interpreter.ENDLESS", 20_000)
    body, words = FAULTY[defect]
    code = f"""typedef unsigned int word;
        extern "C" __global__ void kernel(word* in, word* out) {{
            const word t = blockIdx.x * blockDim.x + threadIdx.x;
            {body}
        }}"""
    memory = Memory()
    held = [memory.holding(np.arange(64, dtype=np.uint32)), memory.take(256)]
    with pytest.raises(Fault, match=words):
        _run(code, 2, 32, memory, held)
