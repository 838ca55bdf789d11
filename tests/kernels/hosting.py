"""Runs a work on the host: the CUDA C itself, compiled by NVRTC and interpreted, and products by numpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whorl.kernels import simulated_device
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.checking import right_values
from whorl.kernels.cupy_library import source
from whorl.kernels.inputs import cleared_faults, expected_words, filled, key
from whorl.kernels.rounding import DTYPES, decode, encode, nearest
from whorl.kernels.work import Expected, Facts, Gemm, Key, Launch, Output, Step, WordsExpected, Work
from whorl.simulation.models import A100, H200, V100
from whorl.tests.kernels import compiling
from whorl.tests.kernels.interpreter import Harm, Memory, Module, Shape, run_kernel

Edit = Callable[[str], str]

SMALL = Facts(
    gpu="GPU-00000000-0000-0000-0000-000000000000",
    model="small",
    node="here",
    index=0,
    capability=(9, 0),
    sms=2,
    memory_bytes=1 << 30,
    l2_bytes=1 << 20,
    max_clock_mhz=1000,
    bandwidth_gb_s=None,
    peers=1,
)
"""A device on which every kernel can be built, small enough for the host."""

_MODELS = {(7, 0): V100, (8, 0): A100, (9, 0): H200}


def facts_of(capability: tuple[int, int], **changes: Any) -> Facts:
    """A V100, an A100 or an H200, by its compute capability."""
    return replace(simulated_device.facts_of(_MODELS[capability]), **changes)


def work_of(name: str, facts: Facts = SMALL, **parameters: Any) -> Work:
    """The work of a kernel, which must fit the device."""
    work = find_kernel(name).build(facts, **parameters)
    assert isinstance(work, Work), work
    return work


class HostDevice:
    """One work in host memory: `run` does its steps once, `wrong` compares its outputs.

    poisoned: to read what nothing wrote is no fault, but gives bits that are all set. compiler: the version of NVRTC.
    """

    def __init__(
        self, work: Work, seed: int, *, edit: Edit | None = None, poisoned: bool = False, compiler: str | None = None
    ) -> None:
        self.work = work
        self.seed = seed
        self._edit, self._compiler = edit, compiler
        if edit is not None:
            sources = {step.source for step in work.steps if isinstance(step, Launch)}
            assert any(edit(source(name)) != source(name) for name in sources), "the edit changes nothing"
        self.repetitions, self._audited = 0, 0
        self.memory = Memory()
        self.harms: list[Harm] = []
        self.done: Counter[str] = Counter()
        self.arrays: dict[str, NDArray[Any]] = {}
        self._addresses: dict[str, np.uint64] = {}
        for buffer in work.buffers:
            if buffer.content is not None:
                array = filled(seed, buffer)
            elif buffer.name == "faults":
                array = cleared_faults()
            else:
                array = np.full(buffer.bytes, 0xFF, np.uint8).view(buffer.dtype)
            assert array.dtype == np.dtype(buffer.dtype)
            written = poisoned or buffer.content is not None or buffer.name == "faults"
            allocation = self.memory.take(buffer.bytes, written=written)
            allocation.label = buffer.name
            self._addresses[buffer.name] = np.uint64(allocation.base)
            self.arrays[buffer.name] = allocation.raw[: buffer.bytes].view(buffer.dtype)
            self.arrays[buffer.name][:] = array
        for step in work.first:
            self._do(step)

    def address(self, buffer: str) -> int:
        """Where a buffer lies."""
        return int(self._addresses[buffer])

    def run(self, instead: tuple[Step, ...] | None = None, *, beside_first: bool = False) -> None:
        """One repetition, or what is done instead, and the audit where it ends a lap; what is beside it comes after it,
        or before."""
        number = self.repetitions % len(self.work.turns)
        turn = self.work.turns[number] if instead is None else instead
        beside = self.work.beside[number] if self.work.beside else ()
        for step in (*beside, *turn) if beside_first else (*turn, *beside):
            self._do(step)
        self.repetitions += 1
        if self.work.lap and self.repetitions % self.work.lap == 0:
            self.audit()

    def audit(self) -> None:
        """The audit of what was not audited yet."""
        written, self._audited = self.repetitions - self._audited, self.repetitions
        if written:
            for step in self.work.audit:
                if isinstance(step, Launch) and step.function == "alike":  # as if a lap ended here
                    step = replace(step, args=(*step.args[:3], np.uint32(written), *step.args[4:]))
                self._do(step)

    def _do(self, step: Step) -> None:
        if isinstance(step, Launch):
            for _ in range(step.times):
                self._launch(step)
        elif isinstance(step, Gemm):
            self._gemm(step)
        else:
            target, source = self.arrays[step.target].view(np.uint8), self.arrays[step.source].view(np.uint8)
            target[step.target_at :][: step.bytes] = source[step.source_at :][: step.bytes]
            self.memory.allocations[int(self._addresses[step.target])].mark_range(step.target_at, step.bytes)

    def _launch(self, launch: Launch) -> None:
        text = source(launch.source)
        arguments = [
            self._addresses[argument]
            if isinstance(argument, str)
            else np.uint32(key(self.seed, argument.buffer))
            if isinstance(argument, Key)
            else argument
            for argument in launch.args
        ]
        text = text if self._edit is None else self._edit(text)
        module = Module(compiling.ptx(text, "90", launch.defines, self._compiler), self.memory)
        shape = Shape(launch.grid, launch.block, launch.shared)
        self.done += run_kernel(module, launch.function, shape, arguments, sms=SMALL.sms, harms=self.harms)

    @property
    def multiply_adds(self) -> int:
        """Of floats, that threads did; two of those of packed numbers."""
        return sum(count * (2 if name.endswith("x2") else 1) for name, count in self.done.items() if "fma." in name)

    def _gemm(self, step: Gemm) -> None:
        """The product as vendors document it: inputs rounded to the precision, sums in fp32 or fp64, C rounded."""
        inputs = "fp32" if step.precision == "tf32" else step.precision
        a = nearest(decode(self.arrays[step.a], inputs), step.precision)
        if step.across:
            a = a.reshape(step.batch, step.k, step.m).transpose(0, 2, 1)
        a = a.reshape(step.batch, step.m, step.k)
        b = nearest(decode(self.arrays[step.b], inputs), step.precision)
        turned = b.reshape(step.batch, step.n, step.k).transpose(0, 2, 1)
        if step.plain:
            turned = b.reshape(step.batch, step.k, step.n)
        a = step.alpha * a
        c = a @ turned if step.precision == "fp64" else a.astype(np.float32) @ turned.astype(np.float32)
        target = self.arrays[step.c][step.c_at :][: step.batch * step.m * step.n]
        target[:] = encode(c.astype(np.float64).reshape(-1), _format(target.dtype))
        self.memory.allocations[int(self._addresses[step.c])].complete = True

    def errors(self, output: Output) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Of every element: what it is, how far that is off, and the tolerance."""
        expected = output.expect(self.seed, max(1, self.repetitions))
        stored = self.arrays[output.buffer][output.at :][: output.count]
        if isinstance(expected, WordsExpected):
            right = expected_words(expected, stored.size, np.arange(stored.size, dtype=np.uint64))
            return stored.astype(np.float64), np.abs(stored - right.astype(np.float64)), np.zeros(stored.size)
        with np.errstate(invalid="ignore"):
            got = (
                stored.astype(np.float64)
                if stored.dtype.kind in "iu" and (stored.dtype.itemsize > 2)
                else decode(stored, _format(stored.dtype))
            )
        with np.errstate(invalid="ignore"):
            values, tolerance = right_values(expected, np.arange(got.size, dtype=np.uint64))
            return got, np.abs(got - values), tolerance

    def wrong(self) -> int:
        """How many elements of all outputs are outside their tolerance, or were found wrong by the kernels, or were
        not compared by them."""
        self.audit()
        count, compared = 0, 0
        if "faults" in self.arrays:
            compared, count = (int(fault) for fault in self.arrays["faults"][:2])
        count += abs(self.repetitions * self.work.compared - compared)
        for output in self.outputs:
            _, off, tolerance = self.errors(output)
            count += int(np.count_nonzero(~(off <= tolerance)))
        return count

    @property
    def outputs(self) -> list[Output]:
        """Those that are checked after the last repetition."""
        last = max(0, self.repetitions - 1) % len(self.work.turns)
        return [output for output in self.work.outputs if output.turn in (None, last)]


def reference(output: Output, seed: int, repetitions: int = 1) -> Expected:
    """What must be in an output of numbers."""
    expected = output.expect(seed, repetitions)
    assert isinstance(expected, Expected)
    return expected


def _format(dtype: np.dtype[Any]) -> str:
    return {name: precision for precision, name in DTYPES.items() if precision != "tf32"}[dtype.name]
