"""The work of a kernel as data: buffers, turns of steps, exact FLOP and bytes, and the expected result.

A kernel is work of known size whose every repetition differs from the one before, so that what was not done is seen.
What came out is compared inside the kernel, in a ring of slots after each lap, or in data that carry every error on.
A `Work` names no library. `cupy_device` runs it on a real GPU, `simulated_device` on a simulated one, and the tests
run the same CUDA C on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scalar = np.generic
"""An argument by value: a numpy scalar, whose type is the C parameter's."""


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
    shared_bytes: int = 48 << 10
    """Shared memory that one block may have."""


@dataclass(frozen=True)
class Array:
    """Content that the host makes: `make(seed)` gives one period as a flat array, repeated to the buffer's length.

    For what is small: weights, graphs, zeros. Making it holds Python's lock, and it travels over the link.
    """

    says: str
    """The distribution in words, as the conditions of a run record it: 'uniform in [-1, 1)'."""
    make: Callable[[int], NDArray[Any]]
    rise: int = 0
    """Added to a period's elements once more in each period: what makes the periods of large buffers different. Of
    float32 (exact only where the sums are) and uint32 (modulo 2^32); the device adds it."""


def zeros(dtype: str) -> Array:
    """Content of nothing but 0."""
    return Array("zeros", lambda seed: np.zeros(1, dtype))  # noqa: ARG005


@dataclass(frozen=True)
class Lanes:
    """Content made on the device: a matrix whose row r is lane `r % lanes` times `inputs.scale(r)`.

    The scale is +-1, +-2, +-4 or +-8 by a hash of r, exact in every format, so that no two rows of a lane need be
    equal and the reference stays that of the lanes. Element c of lane l is one of 4096 numbers of `distribution`,
    chosen by a hash of l and c (`inputs.lane_values`).
    """

    says: str
    distribution: str
    """A name of `inputs.DISTRIBUTIONS`."""
    precision: str
    lanes: int
    length: int
    """Elements of a row; the buffer's count is a multiple of it."""
    across: bool = False
    """Whether the matrix is stored transposed, so that its columns are scaled."""


@dataclass(frozen=True)
class Words:
    """Content made on the device, of a uint32 buffer: element i is `inputs.word(stream, i)`.

    The first 2^32 words all differ, and so do two whose places differ in one bit.
    """

    says: str = "words by their place"


Content = Array | Lanes | Words
"""What a buffer is filled with, from the seed and the buffer's name."""

FAULTS_NAME = "faults"
FAULTS = 512
"""Length of a buffer named `faults`, uint64: the counters that kernels report to (faults.cuh).

[0] elements compared, [1] wrong ones, [2] place of the first wrong one, [3] bits of the largest error in tolerances
(check.cu), [4 + sm] wrong ones by multiprocessor (`%smid`, those above the last counter in the last). Zeroed ([2]: all
bits set) when the inputs are filled and after each check.
"""


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
class Key:
    """An argument that is known when a work is loaded: the stream of a buffer's places, `inputs.key(seed, buffer)`."""

    buffer: str


Argument = str | Scalar | Key


COUNTERS = Buffer(FAULTS_NAME, "uint64", FAULTS)
"""The buffer of the counters, for a work whose kernels or audits compare."""


@dataclass(frozen=True)
class Launch:
    """A function of a CUDA C source of this folder. Arguments are names of buffers, numpy scalars by value, or keys."""

    source: str
    """File name, as 'fma.cu'."""
    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    defines: tuple[str, ...] = ()
    """Compiler definitions, as 'CHAINS=8'."""
    times: int = 1
    """Launched so often, one after another."""
    shared: int = 0
    """Bytes of shared memory for each block beside what the function declares."""


@dataclass(frozen=True)
class Gemm:
    """C = alpha A times B through the vendor's library: A is m x k row-major, B is n x k row-major (each row of it is a
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
    """Number of products; their matrices lie one after another. Of fp8 there is one."""
    plain: bool = False
    """Whether B lies as it is written in a formula; not in fp8, which no library takes so."""
    across: bool = False
    """Whether A lies transposed, k x m; not in fp8."""
    alpha: float = 1.0
    """+1 in one lap of a ring and -1 in the next: what stands in a slot from before has the wrong sign."""
    c_at: int = 0
    """Element of the buffer `c` where C begins: its slot in a ring."""


@dataclass(frozen=True)
class Copy:
    """`bytes` from one buffer to another, asynchronously in the work's stream; offsets are in bytes."""

    source: str
    target: str
    bytes: int
    source_at: int = 0
    target_at: int = 0


Step = Launch | Gemm | Copy


@dataclass(frozen=True)
class Expected:
    """What a result must be: `values` and `tolerance` of shape (p, q), float64.

    Element i of a result with rows of `columns` elements, r, c = divmod(i, columns), must lie within
    tolerance[r % p, c % q] of values[r % p, c % q] + rise * (r // p); both times `inputs.scale(r)` and
    `scale(c)` where `scaled`. Tolerance 0 asks for equality.
    """

    columns: int
    values: NDArray[np.float64]
    tolerance: NDArray[np.float64]
    scaled: bool = False
    rise: float = 0.0


@dataclass(frozen=True)
class WordsExpected:
    """What a result of `count` uint32 words must be: element i is word(stream, (first + i) % count) +
    plus_factor * word(plus, i), modulo 2^32 (`inputs.expected_words`)."""

    stream: int
    """Of the buffer whose `Words` these are: `inputs.key(seed, name)`."""
    first: int = 0
    plus: int = 0
    """Stream of a second buffer, where `plus_factor` is not 0."""
    plus_factor: int = 0


def exactly(value: float) -> Expected:
    """All elements of a result have one value."""
    return Expected(1, np.full((1, 1), float(value)), np.zeros((1, 1)))


Expectation = Callable[[int, int], Expected | WordsExpected]
"""`expect(seed, repetitions)`: of the seed of the inputs, and the repetitions since they were filled."""


def unchanging(expect: Callable[[int], Expected]) -> Expectation:
    """The expectation of a result that is the same after any number of repetitions."""
    return lambda seed, repetitions: expect(seed)  # noqa: ARG005


@dataclass(frozen=True)
class Output:
    """A result that is checked after the last repetition: the buffer, and what must be in it."""

    buffer: str
    expect: Expectation
    turn: int | None = None
    """Checked only where the last repetition was of this turn; None for always."""
    at: int = 0
    """Element of the buffer where the result begins: its slot in a ring."""
    count: int | None = None
    """Elements of the result; None for all of the buffer from `at` on."""


@dataclass(frozen=True)
class UnitMix:
    """What one repetition asks of the units of the multiprocessors, where it uses several of them at once."""

    operations: Mapping[str, int]
    """By precision; a multiply-add is two."""
    dram_bytes: float
    l2_bytes: float
    """That the multiprocessors ask of the L2 cache, whole sectors, those from memory too."""
    shared_bytes: float
    """Of shared memory, times how often its banks are asked one after another."""
    instructions: int
    """Of warps."""
    sms: int
    """Multiprocessors with work."""
    steps: int
    """Of all blocks that run one after another on a multiprocessor."""
    step_clocks: float
    """Clocks of arithmetic in a step that wait for one another."""
    footprint: int
    """Bytes that a step waits for a load from: 0 where for none."""
    sleep_ns: float
    """In a step."""


@dataclass(frozen=True)
class Work:
    """The repetitions of a kernel on one device: what is timed between two events, and how it is checked.

    `flop` and `bytes` are exact, of one repetition of any turn: arithmetic operations (an FMA is two), and bytes that
    the algorithm moves over the path that the kernel stresses.
    """

    kernel: str
    precision: str
    """What the arithmetic is done in: of `rounding.DTYPES`."""
    buffers: tuple[Buffer, ...]
    turns: tuple[tuple[Step, ...], ...]
    """Repetition n, counted from 0 since the inputs were filled, runs `turns[n % len(turns)]`. Neighbouring turns
    differ, so that what stands in memory from an earlier repetition is wrong for this one."""
    flop: int = 0
    bytes: int = 0
    outputs: tuple[Output, ...] = ()
    turn_bytes: int = 0
    """Bytes that a turn moves in the device's memory, where `bytes` are those of the copies beside it."""
    path: str = "dram"
    """Where `bytes` go: 'dram', 'l2', 'pcie', 'peer', or 'none'."""
    parameters: Mapping[str, float | int | str] = field(default_factory=dict)
    """The sizes chosen, as the conditions of a run record them."""
    operations: int = 0
    """Of work that is neither FLOP nor bytes: dependent loads, atomics, launches, edges."""
    activity: float = 0.5
    """Switching activity of the SMs, 1 is SGEMM: what a simulated device makes power from. Assumed where not fitted.
    With a `mix`: a factor on what its units have."""
    mix: UnitMix | None = None

    first: tuple[Step, ...] = ()
    """Run whenever the inputs have been filled, before repetition 0; not timed, and compares nothing."""
    beside: tuple[tuple[Copy, ...], ...] = ()
    """Repetition n runs `beside[n % len(beside)]` in a second stream, from when its turn begins, and ends with the
    later of the two. Nothing that either writes is read or written by the other. As many as turns, or none."""

    lap: int = 0
    """After so many repetitions the audit runs, outside the timed spans; 0 for never. The number of turns is a multiple
    of it. The repetitions of a repeat lie within one lap: what a lap lacks before the next repeat, or before a check,
    runs untimed. So a repeat best has a divisor of it."""
    audit: tuple[Step, ...] = ()
    compared: int = 0
    """Comparisons that a repetition adds to the buffer `faults`, by its kernels or by the audit: a check demands
    exactly repetitions times these, so that a launch that did nothing, or left out a block, is found. Where it is 0, an
    error of any repetition stays in the outputs to the end, so that their check covers all of them."""

    def elements_of(self, output: Output) -> int:
        """Elements of an output."""
        buffer = next(buffer for buffer in self.buffers if buffer.name == output.buffer)
        return buffer.count - output.at if output.count is None else output.count

    def bytes_of(self, output: Output) -> int:
        """Bytes of an output."""
        buffer = next(buffer for buffer in self.buffers if buffer.name == output.buffer)
        return self.elements_of(output) * np.dtype(buffer.dtype).itemsize

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all turns, of what is beside them and before them, and of the audit."""
        return (*self.first, *chain.from_iterable((*self.turns, *self.beside)), *self.audit)

    @property
    def memory_bytes(self) -> int:
        """Device memory that the buffers take."""
        return sum(buffer.bytes for buffer in self.buffers if buffer.place == "device")

    @property
    def input(self) -> str:
        """The distributions of the inputs, in words."""
        return "; ".join(f"{b.name}: {b.content.says}" for b in self.buffers if b.content is not None)


@dataclass(frozen=True)
class WorkPart:
    """What a work may do besides others in each repetition: its buffers, and of each turn its step and its result."""

    buffers: tuple[Buffer, ...]
    turns: tuple[Step, ...]
    outputs: tuple[Output, ...]
    audit: tuple[Launch, ...] = ()
    compared: int = 0


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
    says: str
    """What it does, in a sentence."""
    build: Callable[..., Work | Unfit]
    """`build(facts, **parameters)`: the work for a device; parameters have defaults."""
    needs: str = ""
    """What a device must have, in words; '' for any."""
