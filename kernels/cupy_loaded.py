"""A work on a real GPU: its kernels compiled, its memory allocated; runs it, checks it, and frees the memory.

The repetitions of a run are enqueued ahead, so that the GPU never waits for the host; a repetition of several launches
is captured once as a CUDA graph, because to launch from Python takes longer than a short kernel runs. Times are of
events on the GPU's clock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError
from ..store.vocabulary import Outcome
from . import checking
from .checking import Reference
from .cublas_lt import LtProduct
from .cupy_buffers import Buffers
from .cupy_waiting import Late, Throttle, Waiting
from .device import Timed, Verdict
from .work import Copy, Expected, Gemm, Launch, Live, Output, Step, Work

if TYPE_CHECKING:
    from .cupy_gpu import CupyGpu

GRACE_S = 10.0
"""How long work that is late may take to end before the GPU counts as hanging."""
CHECK_LIMIT_S = 120.0
LOAD_LIMIT_S = 120.0
GRAPH_NODES = 50_000
"""A repetition of more launches is not made a graph."""


class CupyLoaded:
    """What `CupyDevice.load` gives; see `Loaded`."""

    def __init__(self, device: CupyGpu, work: Work, seed: int, unloaded: Callable[[CupyLoaded], None]) -> None:
        """To be made with the device as the current one; `unloaded` is called once, when it is unloaded.

        DeviceError; nothing stays behind then.
        """
        self._device, self._unloaded = device, unloaded
        self._work = work
        self._seed = seed
        self._runtime: Any = device.runtime
        self._stream = device.stream_address
        self._waiting = Waiting(self._runtime, self._stream)
        self._buffers = Buffers(self._runtime, device.facts.gpu, device.ordinal, device.peer, self._stream)
        self._products: list[LtProduct] = []
        self._events: list[int] = []
        self._markers: tuple[int, int] | None = None
        self._turns: list[list[tuple[int, Callable[[], None]]]] = []
        self._graphs: list[int | None] = []
        self._repetitions = 0
        self._warm = False
        self._repetition_s = 0.0
        self._loaded = True
        try:
            self._load()
        except BaseException:
            self._drop()
            raise

    @property
    def work(self) -> Work:
        return self._work

    def address(self, buffer: str) -> int:
        """Where a buffer lies, on the GPU or in pinned host memory."""
        return self._buffers[buffer]

    # -- loading ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        compiled = {
            (step.source, step.function, step.defines): self._device.function(step.source, step.function, step.defines)
            for step in self._work.steps
            if isinstance(step, Launch)
        }
        self._buffers.take(self._work)
        for buffer in self._work.buffers:
            if buffer.content is not None:
                self._buffers.fill(buffer.name, self._seed)
        self._turns = [[self._ready(step, compiled) for step in turn] for turn in self._work.turns]
        self._graphs = [None] * len(self._turns)
        self._settle(LOAD_LIMIT_S, "filling its inputs")
        self._buffers.landed()

    def _ready(self, step: Step, compiled: dict[Any, Any]) -> tuple[int, Callable[[], None]]:
        """How often, and what enqueues one launch of a step."""
        buffers = self._buffers
        if isinstance(step, Launch):
            kernel = compiled[step.source, step.function, step.defines]
            args = tuple(
                np.uint64(buffers[a]) if isinstance(a, str) else a for a in step.args if not isinstance(a, Live)
            )
            if not step.shared:
                return step.times, lambda: kernel(step.grid, step.block, args)
            self._device.allow_shared(kernel, step.shared)
            return step.times, lambda: kernel(step.grid, step.block, args, shared_mem=step.shared)
        if isinstance(step, Copy):
            target, source = buffers[step.target] + step.target_at, buffers[step.source] + step.source_at
            kind = self._runtime.memcpyDefault
            return 1, lambda: self._runtime.memcpyAsync(target, source, step.bytes, kind, self._stream)
        addresses = (buffers[step.a], buffers[step.b], buffers[step.c])
        return 1, self._product(step, addresses, [buffers.buffer(name).dtype for name in (step.a, step.b, step.c)])

    def _product(self, step: Gemm, addresses: tuple[int, int, int], types: list[str]) -> Callable[[], None]:
        shape, device = (step.m, step.n, step.k), self._device
        if step.precision == "fp8":
            assert not step.plain
            product = LtProduct(device.library("cublasLt"), shape, step.batch, types)
            self._products.append(product)
            return lambda: product.enqueue(addresses, device.workspace, self._stream)
        blas = device.blas
        return lambda: blas.gemm(step.precision, shape, step.batch, addresses, types, plain=step.plain)

    # -- running ------------------------------------------------------------------------------------------

    async def run(self, repeats: int, *, each: int = 1, limit_s: float) -> Timed:
        """See `Loaded.run`. The very first run begins with one repetition more, which no time counts."""
        with self._device.using(self._work.kernel):
            try:
                return self._run(repeats, each, time.monotonic() + limit_s)
            except Late:
                count = repeats * each
                raise self._late("1 repetition" if count == 1 else f"{count} repetitions", limit_s) from None

    def _run(self, repeats: int, each: int, deadline: float) -> Timed:
        waiting, elapsed = self._waiting, self._runtime.eventElapsedTime
        if self._markers is None:
            self._markers = waiting.event(timing=False), waiting.event(timing=False)
        throttle = Throttle(waiting, self._markers, deadline)
        if not self._warm:
            self._first(throttle, deadline)
        throttle.pace(self._launches, self._repetition_s)
        while len(self._events) < repeats + 2:
            self._events.append(waiting.event())
        anchor, *marks = self._events[: repeats + 2]
        anchor_ns = self._dated(anchor, deadline)
        waiting.record(marks[0])
        for mark in marks[1:]:
            for _ in range(each):
                self._enqueue(throttle)
            waiting.record(mark)
        waiting.until(marks[-1], deadline)
        times = np.array([elapsed(a, b) / each for a, b in itertools.pairwise(marks)])
        if len(times):
            self._repetition_s = float(np.median(times)) / 1e3
        began, ended = (anchor_ns + round(1e6 * elapsed(anchor, mark)) for mark in (marks[0], marks[-1]))
        return Timed(began, ended, times)

    def _dated(self, anchor: int, deadline: float) -> int:
        """When an event was reached, UTC in ns: the GPU's own clock has no date. Tried again where the host was held
        up between asking and knowing."""
        for _ in range(5):
            self._waiting.record(anchor)
            asked_ns = time.time_ns()
            self._waiting.until(anchor, deadline, spin=True)
            known_ns = time.time_ns()
            if known_ns - asked_ns < 500_000:
                break
        return (asked_ns + known_ns) // 2

    @property
    def _launches(self) -> int:
        """What is enqueued for a repetition."""
        return 1 if self._graphs[0] is not None else sum(times for times, _ in self._turns[0])

    def _first(self, throttle: Throttle, deadline: float) -> None:
        """A repetition that loads what is loaded lazily, and tells how long one takes; then the graph."""
        began, ended = self._waiting.event(), self._waiting.event()
        self._events += [began, ended]
        self._waiting.record(began)
        self._once(0, throttle)
        self._repetitions = 1
        self._waiting.record(ended)
        self._waiting.until(ended, deadline)
        self._repetition_s = self._runtime.eventElapsedTime(began, ended) / 1e3
        if 1 < self._launches <= GRAPH_NODES:
            self._graphs = [self._captured(turn) for turn in range(len(self._turns))]
        self._warm = True

    def _once(self, turn: int, throttle: Throttle | None) -> None:
        """Enqueue one repetition, launch by launch."""
        for times, enqueue in self._turns[turn]:
            for _ in range(times):
                enqueue()
                if throttle is not None:
                    throttle.launched()

    def _enqueue(self, throttle: Throttle) -> None:
        turn = self._repetitions % len(self._turns)
        self._repetitions += 1
        graph = self._graphs[turn]
        if graph is None:
            self._once(turn, throttle)
        else:
            self._runtime.graphLaunch(graph, self._stream)
            throttle.launched()

    def _captured(self, turn: int) -> int | None:
        """A repetition as a CUDA graph, ready to launch; None where CUDA or a library cannot make one."""
        runtime = self._runtime
        try:
            runtime.streamBeginCapture(self._stream, runtime.streamCaptureModeRelaxed)
        except RuntimeError:
            return None
        try:
            self._once(turn, None)
        except BaseException as error:
            with suppress(RuntimeError):  # a capture that broke ends with an error, and no graph
                runtime.graphDestroy(runtime.streamEndCapture(self._stream))
            if isinstance(error, RuntimeError | DeviceError):
                return None
            raise
        try:
            graph = runtime.streamEndCapture(self._stream)
        except RuntimeError:
            return None
        try:
            return int(runtime.graphInstantiate(graph))
        except RuntimeError:
            return None
        finally:
            runtime.graphDestroy(graph)

    def _late(self, what: str, limit_s: float) -> DeviceError:
        """What it means that a deadline passed: slow work, or a GPU that hangs."""
        gpu, kernel = self._device.facts.gpu, self._work.kernel
        if self._waiting.drained(GRACE_S):
            return DeviceError(f"{gpu}: {kernel}: {what} did not end within {limit_s:g} s", outcome=Outcome.HUNG)
        self._device.give_up(
            f"{gpu}: {kernel} hangs: {what} did not end within {limit_s:g} s and {GRACE_S:g} s more; "
            f"this process cannot use this GPU any more",
            Outcome.HUNG,
        )
        return DeviceError(str(self._device.lost), gone=True, outcome=Outcome.HUNG)

    def _settle(self, limit_s: float, what: str) -> None:
        """Wait until all that is enqueued is done."""
        if not self._waiting.drained(limit_s):
            raise self._late(what, limit_s)

    # -- checking -----------------------------------------------------------------------------------------

    async def read(self, buffer: str) -> NDArray[Any]:
        """See `Loaded.read`."""
        with self._device.using(f"reading {buffer} of {self._work.kernel}"):
            array = np.zeros(self._buffers.buffer(buffer).count, self._buffers.buffer(buffer).dtype)
            self._settle(CHECK_LIMIT_S, "what was enqueued")
            self._buffers.download(array, self._buffers[buffer])
            self._settle(CHECK_LIMIT_S, "the copy")
            return array

    async def check(self) -> Verdict:
        """See `Loaded.check`."""
        with self._device.using(f"checking {self._work.kernel}"):
            return checking.together([self._check(output) for output in self._work.outputs])

    def _check(self, output: Output) -> Verdict:
        buffer = self._buffers.buffer(output.buffer)
        expected = output.expect(self._seed, self._repetitions)
        assert isinstance(expected, Expected)
        reference = Reference.of(expected, buffer.name)
        kernel = self._device.function(checking.SOURCE, checking.FUNCTION, (checking.element_define(buffer.dtype),))
        device = self._device
        own = Buffers(self._runtime, device.facts.gpu, device.ordinal, device.peer, self._stream)
        found = checking.found_nothing()
        try:
            values, tolerance, result = (own.upload(a) for a in (reference.values, reference.tolerance, found))
            p, q = reference.values.shape
            grid = (checking.blocks(buffer.count, device.facts.sms), 1, 1)
            addresses = tuple(np.uint64(a) for a in (self._buffers[buffer.name], values, tolerance))
            sizes = (np.uint64(buffer.count), np.uint64(reference.columns), np.uint32(p), np.uint32(q))
            kernel(grid, (checking.BLOCK, 1, 1), (*addresses, *sizes, np.uint64(result)))
            self._settle(CHECK_LIMIT_S, "the check")
            own.download(found, result)
            self._settle(CHECK_LIMIT_S, "the check")
            wrong, first, compared = int(found[0]), int(found[1]), int(found[3])
            says = self._first_wrong(own, output, first, reference) if wrong else None
        finally:
            if device.lost is None:  # to free waits for what hangs
                own.release()
        if compared != buffer.count:
            raise DeviceError(
                f"{device.facts.gpu}: the check of {self._work.kernel} compared {compared} of {buffer.count} elements"
            )
        return Verdict(compared, wrong, says, checking.worst_of(found))

    def _first_wrong(self, own: Buffers, output: Output, index: int, reference: Reference) -> str:
        buffer = self._buffers.buffer(output.buffer)
        element = np.zeros(1, buffer.dtype)
        own.download(element, self._buffers[buffer.name] + index * element.itemsize)
        self._settle(CHECK_LIMIT_S, "the check")
        value = checking.decoded(buffer.dtype, element.tobytes())
        return checking.position_in_words(buffer.name, index, value, reference)

    async def poison(self) -> None:
        """See `Loaded.poison`. An output that is also an input is filled with its content again."""
        with self._device.using(f"clearing the outputs of {self._work.kernel}"):
            outputs = {output.buffer for output in self._work.outputs}
            for buffer in self._work.buffers:
                if buffer.content is not None:
                    self._buffers.fill(buffer.name, self._seed)
                elif buffer.name in outputs:
                    self._buffers.poison(buffer.name)
            self._repetitions = 0
            self._settle(LOAD_LIMIT_S, "clearing the outputs")
            self._buffers.landed()

    # -- giving back --------------------------------------------------------------------------------------

    def unload(self) -> None:
        """See `Loaded.unload`. On a GPU that hangs or failed nothing is given back: to try would wait for ever."""
        if self._loaded:
            with suppress(Exception), self._device.using("unloading"):
                self._settle(GRACE_S, "what was enqueued")
                self._drop()
            self._loaded = False
            self._unloaded(self)

    def _drop(self) -> None:
        """Give back all that was taken; each part on its own, as one may fail. Nothing on a GPU that hangs."""
        if self._device.lost is not None:
            return
        for product in self._products:
            product.close()
        runtime = self._runtime
        for graph in self._graphs:
            if graph is not None:
                with suppress(RuntimeError):
                    runtime.graphExecDestroy(graph)
        for event in [*self._events, *(self._markers or ())]:
            with suppress(RuntimeError):
                runtime.eventDestroy(event)
        self._products, self._graphs, self._events, self._markers, self._turns = [], [], [], None, []
        self._buffers.release()
