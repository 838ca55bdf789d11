"""The work of a kernel as data: buffers, steps, exact FLOP and bytes, and the expected result.

A `Work` names no library. `cupy_device` runs it on a real GPU, `simulated_device` on a simulated one, and the tests
run the same CUDA C on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scalar = np.generic
"""An argument by value: a numpy scalar, whose type is the C parameter's."""

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int32")
"""What the arithmetic is done in. fp8 is E4M3; bf16 and fp8 are stored as uint16 and uint8 bit patterns."""


@dataclass(frozen=True)
class Facts:
    """What a device is, as far as the size of work depends on it."""

    gpu: str
    """UUID."""
    model: str
    node: str
    index: int
    """Position in its node; never a key."""
    capability: tuple[int, int]
    """CUDA compute capability."""
    sms: int
    memory_bytes: int
    l2_bytes: int
    max_clock_mhz: float
    bandwidth_gb_s: float | None
    """Peak DRAM bandwidth by memory clock and bus width; None where the driver does not tell."""
    peers: int = 0
    """Other GPUs of the node that this one can copy to without the host."""


@dataclass(frozen=True)
class Content:
    """What a buffer is filled with: `make(seed)` gives one period as a flat array, repeated to the buffer's length.

    Inputs repeat so that they are made in a moment, travel cheaply, and every element of a result has a reference.
    """

    says: str
    """The distribution in words, as the conditions of a run record it: 'uniform in [-1, 1)'."""
    make: Callable[[int], NDArray[Any]]


@dataclass(frozen=True)
class Buffer:
    """Memory for a work: `count` elements of a numpy dtype; without content it is not initialised."""

    name: str
    dtype: str
    count: int
    content: Content | None = None
    place: str = "device"
    """'device', 'host' (pinned) or 'peer' (device memory of another GPU of the node)."""

    @property
    def bytes(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Launch:
    """A function of a CUDA C source of this folder. Arguments are names of buffers, or numpy scalars by value."""

    source: str
    """File name, as 'fma.cu'."""
    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[str | Scalar, ...]
    defines: tuple[str, ...] = ()
    """Compiler definitions, as 'CHAINS=8'."""
    times: int = 1
    """Launched so often, one after another."""


@dataclass(frozen=True)
class Gemm:
    """C = A times B through the vendor's library: A is m x k row-major, B is n x k row-major (each row of it is a
    column of the product's right side), or k x n where `plain`, C is m x n row-major; accumulated in fp32, or fp64 for
    fp64."""

    precision: str
    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    batch: int = 1
    """Number of products; their matrices lie one after another."""
    plain: bool = False
    """Whether B lies as it is written in a formula; not in fp8, which no library takes so."""


@dataclass(frozen=True)
class Copy:
    """`bytes` from one buffer's beginning to another's, asynchronously in the work's stream."""

    source: str
    target: str
    bytes: int


Step = Launch | Gemm | Copy


@dataclass(frozen=True)
class Expected:
    """What a result must be: `values` and `tolerance` of shape (p, q), float64.

    Element i of a result with rows of `columns` elements must lie within tolerance[r % p, c % q] of
    values[r % p, c % q], where r, c = divmod(i, columns). Tolerance 0 asks for equality.
    """

    columns: int
    values: NDArray[np.float64]
    tolerance: NDArray[np.float64]


@dataclass(frozen=True)
class Output:
    """A result that is checked: the buffer, and what must be in it after any number of repetitions.

    `derivation` says in a sentence where the tolerance comes from.
    """

    buffer: str
    expect: Callable[[int], Expected]
    """Of the seed of the inputs."""
    derivation: str


@dataclass(frozen=True)
class Work:
    """One repetition of a kernel on one device: what is timed between two events.

    `flop` and `bytes` are exact, of one repetition: arithmetic operations (an FMA is two), and bytes that the
    algorithm moves over the path that the kernel stresses.
    """

    kernel: str
    precision: str
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    flop: int
    bytes: int
    outputs: tuple[Output, ...]
    path: str = "dram"
    """Where `bytes` go: 'dram', 'l2', 'pcie', 'peer', or 'none'."""
    parameters: Mapping[str, float | int | str] = field(default_factory=dict)
    """The sizes chosen, as the conditions of a run record them."""
    operations: int = 0
    """Of work that is neither FLOP nor bytes: dependent loads, atomics, launches, edges."""
    activity: float = 0.5
    """Switching activity of the SMs, 1 is SGEMM: what a simulated device makes power from. Assumed where not fitted."""

    @property
    def memory_bytes(self) -> int:
        """Device memory that the buffers take."""
        return sum(buffer.bytes for buffer in self.buffers if buffer.place == "device")

    @property
    def input(self) -> str:
        """The distributions of the inputs, in words."""
        return "; ".join(f"{b.name}: {b.content.says}" for b in self.buffers if b.content is not None)


@dataclass(frozen=True)
class Unfit:
    """Why a kernel cannot run on a device. This is an answer, not an error."""

    reason: str


@dataclass(frozen=True)
class Kernel:
    """Work of known size: one row of `catalogue.KERNELS`."""

    name: str
    """As 'gemm-fp32'; what a probe of it is called, and `workload` in the tables."""
    version: str
    """Grows when the figures of two versions cannot be compared."""
    stresses: str
    """In a few words: 'tensor cores, bf16'."""
    says: str
    """What it does, in a sentence."""
    build: Callable[..., Work | Unfit]
    """`build(facts, **parameters)`: the work for a device; parameters have defaults."""
    needs: str = ""
    """What a device must have, in words; '' for any."""
