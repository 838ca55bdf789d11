"""The interpreter of PTX says what a source must not do; what it computes is right where a kernel comes out right."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.tests.kernels import compiling
from whorl.tests.kernels.device_memory import Fault
from whorl.tests.kernels.interpreter import Memory, Module, Shape, run_kernel

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())

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
    module = Module(compiling.ptx(code, "90", ()), memory)
    arguments = [np.uint64(allocation.base) for allocation in held]
    with pytest.raises(Fault, match=words):
        run_kernel(module, "kernel", Shape((2, 1, 1), (32, 1, 1)), arguments, sms=4)
