"""A work on a real GPU: its kernels compiled, its memory allocated; runs it, checks it, and frees the memory.

The repetitions of a run are enqueued ahead, so that the GPU never waits for the host; a turn of several launches is
captured once as a CUDA graph, because to launch from Python takes longer than a short kernel runs. Times are of
events on the GPU's clock. Audits run between the repeats, and each repeat has its own beginning and end, so that they
are in no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError
from ..store.vocabulary import Outcome
from . import checking
from .checking import Counts
from .cublas import Cublas, LtProduct
from .cupy_buffers import Buffers
from .cupy_waiting import Late, Throttle, Waiting
from .device import Timed, Verdict
from .inputs import cleared_faults, key
from .work import FAULTS_NAME, Argument, Copy, Facts, Gemm, Key, Launch, Output, Scalar, Step, WordsExpected, Work

GRACE_S = 10.0
"""How long work that is late may take to end before the GPU counts as hanging."""
CHECK_LIMIT_S = 120.0
LOAD_LIMIT_S = 120.0
GRAPH_NODES = 50_000
"""A turn of more launches is not made a graph."""

_Enqueue = Callable[[], None]
_CopyIn = Callable[[int], None]
"""Enqueues a copy in a stream."""


@dataclass(frozen=True)
class _Beside:
    """The second stream of a work, and what is copied beside each turn."""

    runtime: Any
    first: int
    second: int
    began: int
    ended: int
    copies: list[list[_CopyIn]]

    def begin(self, turn: int) -> None:
        """Enqueue the copies of a turn, to begin when all that is enqueued before them is done."""
        self.runtime.eventRecord(self.began, self.first)
        self.runtime.streamWaitEvent(self.second, self.began)
        for copy in self.copies[turn]:
            copy(self.second)

    def end(self) -> None:
        """Let what is enqueued next wait for the copies."""
        self.runtime.eventRecord(self.ended, self.second)
        self.runtime.streamWaitEvent(self.first, self.ended)


class OpenedGpu(Protocol):
    """What a loaded work needs of the GPU that it is on; `CupyDevice` is one."""

    runtime: Any
    ordinal: int
    facts: Facts
    lost: str | None

    @property
    def peer(self) -> int | None: ...
    @property
    def stream_address(self) -> int: ...
    @property
    def workspace(self) -> int: ...
    @property
    def blas(self) -> Cublas: ...

    def using(self, doing: str) -> AbstractContextManager[None]: ...
    def function(self, name: str, function: str, defines: tuple[str, ...]) -> Any: ...
    def allow_shared(self, kernel: Any, size: int) -> None: ...
    def library(self, name: str) -> Any: ...
    def give_up(self, why: str, outcome: str) -> None: ...


class CupyLoaded:
    """What `CupyDevice.load` gives; see `Loaded`."""

    def __init__(self, device: OpenedGpu, work: Work, seed: int, unloaded: Callable[[CupyLoaded], None]) -> None:
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
        self._products: dict[Any, LtProduct] = {}
        self._events: list[int] = []
        self._steps: list[list[_Enqueue]] = []
        self._audit: list[_Enqueue] = []
        self._before: list[_Enqueue] = []
        self._beside: _Beside | None = None
        self._graphs: list[int | None] = [None] * len(work.turns)
        self._repetitions = self._unaudited = self._unchecked = 0  # since the inputs were filled
        self._counters = 0
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
        for step in self._work.steps:  # what does not compile takes no memory
            if isinstance(step, Launch):
                self._device.function(step.source, step.function, step.defines)
        self._buffers.take(self._work)
        self._counters = self._buffers.upload(cleared_faults())
        self._steps = [self._ready(turn) for turn in self._work.turns]
        self._audit, self._before = self._ready(self._work.audit), self._ready(self._work.first)
        self._markers = self._event(timing=False), self._event(timing=False)
        if self._work.beside:
            second = int(self._runtime.streamCreateWithFlags(self._runtime.streamNonBlocking))
            self._buffers.on_release(lambda: self._runtime.streamDestroy(second))
            began, ended = self._event(timing=False), self._event(timing=False)
            copies = [[self._copy(step) for step in steps] for steps in self._work.beside]
            self._beside = _Beside(self._runtime, self._stream, second, began=began, ended=ended, copies=copies)
        self._fill()
        self._settle(LOAD_LIMIT_S, "filling its inputs")
        self._buffers.landed()

    def _event(self, *, timing: bool = True) -> int:
        """An event that lives as long as the buffers."""
        event = self._waiting.event(timing=timing)
        self._buffers.on_release(lambda: self._runtime.eventDestroy(event))
        return event

    def _fill(self) -> None:
        """Enqueue what every buffer begins with: its content, or what no result can be."""
        for buffer in self._work.buffers:
            if buffer.content is not None:
                self._buffers.fill(buffer.name, self._seed, partial(self._launch, "fill.cu"))
            elif buffer.name != FAULTS_NAME:
                self._buffers.poison(buffer.name)
        self._buffers.clear_faults()
        self._enqueue_steps(self._before, None)
        self._repetitions = self._unaudited = self._unchecked = 0

    def _launch(
        self, source: str, function: str, defines: tuple[str, ...], count: int, args: tuple[Scalar, ...]
    ) -> None:
        """Enqueue a function of one of the sources that go over so many elements."""
        kernel = self._device.function(source, function, defines)
        kernel(checking.grid(count, self._device.facts.sms), (checking.BLOCK, 1, 1), args)

    def _ready(self, steps: Sequence[Step]) -> list[_Enqueue]:
        return [
            enqueue
            for step in steps
            for enqueue in [self._enqueues(step)] * (step.times if isinstance(step, Launch) else 1)
        ]

    def _enqueues(self, step: Step) -> _Enqueue:
        buffers = self._buffers
        if isinstance(step, Launch):
            kernel = self._device.function(step.source, step.function, step.defines)
            args = tuple(map(self._argument, step.args))
            if step.shared:
                self._device.allow_shared(kernel, step.shared)
            return lambda: kernel(step.grid, step.block, args, shared_mem=step.shared)
        if isinstance(step, Copy):
            return partial(self._copy(step), self._stream)
        types = [buffers.buffer(name).dtype for name in (step.a, step.b, step.c)]
        slot = step.c_at * np.dtype(types[2]).itemsize
        return self._product(step, (buffers[step.a], buffers[step.b], buffers[step.c] + slot), types)

    def _copy(self, step: Copy) -> _CopyIn:
        target, source = self._buffers[step.target] + step.target_at, self._buffers[step.source] + step.source_at
        kind = self._runtime.memcpyDefault
        return lambda stream: self._runtime.memcpyAsync(target, source, step.bytes, kind, stream)

    def _argument(self, argument: Argument) -> Scalar:
        if isinstance(argument, str):
            return np.uint64(self._buffers[argument])
        return np.uint32(key(self._seed, argument.buffer)) if isinstance(argument, Key) else argument

    def _product(self, step: Gemm, addresses: tuple[int, int, int], types: list[str]) -> _Enqueue:
        device = self._device
        if step.precision == "fp8":
            assert (step.batch, step.plain, step.across) == (1, False, False)
            product = self._planned((step.m, step.n, step.k), types)
            return lambda: product.enqueue(addresses, device.workspace, self._stream, alpha=step.alpha)
        blas = device.blas
        return lambda: blas.gemm(step, addresses, types)

    def _planned(self, shape: tuple[int, int, int], types: list[str]) -> LtProduct:
        """The plan of a product; products of one shape share it, so that all of them are done in the same way."""
        key_of_plan = (shape, tuple(types))
        if key_of_plan not in self._products:
            product = LtProduct(self._device.library("cublasLt"), shape, types)
            self._buffers.on_release(product.close)
            self._products[key_of_plan] = product
        return self._products[key_of_plan]

    # -- running ------------------------------------------------------------------------------------------

    async def run(self, repeats: int, *, each: int = 1, limit_s: float, apart: bool = False) -> Timed:
        """See `Loaded.run`. The very first run begins with one repetition more, which no time counts."""
        with self._device.using(self._work.kernel):
            try:
                return self._run(repeats, each, time.monotonic() + limit_s, apart=apart)
            except Late:
                count = repeats * each
                raise self._late("1 repetition" if count == 1 else f"{count} repetitions", limit_s) from None

    def _run(self, repeats: int, each: int, deadline: float, *, apart: bool) -> Timed:
        if self._work.lap and each > self._work.lap:
            raise ValueError(f"{self._work.kernel}: {each} repetitions do not lie within a lap of {self._work.lap}")
        waiting, elapsed = self._waiting, self._runtime.eventElapsedTime
        repetitions = self._repetitions
        throttle = Throttle(waiting, self._markers, deadline)
        if not self._warm:
            self._first(throttle, deadline)
        throttle.pace(self._launches, self._repetition_s)
        events = self._timers()
        anchor = next(events)
        anchor_ns = self._dated(anchor, deadline)
        spans: list[tuple[int, int]] = []
        began = ended = next(events)
        turns: list[tuple[int, int]] = []
        waiting.record(began)
        for _ in range(repeats):
            if self._make_room(each, throttle):
                began = next(events)
                waiting.record(began)
            for _ in range(each):
                turned = next(events) if self._beside and each == 1 else None
                self._enqueue(throttle, turned, apart=apart)
                if turned is not None:
                    turns.append((began, turned))
            ended = next(events)
            waiting.record(ended)
            spans.append((began, ended))
            began = ended
        waiting.until(ended, deadline)
        times = np.array([elapsed(*span) / each for span in spans])
        if spans:
            self._repetition_s = float(np.median(times)) / 1e3
        from_ns, to_ns = (
            anchor_ns + round(1e6 * elapsed(anchor, mark)) for mark in (spans[0][0] if spans else began, ended)
        )
        turns_ms = np.array([elapsed(*span) for span in turns]) if turns else None
        return Timed(from_ns, to_ns, times, self._repetitions - repetitions, turns_ms)

    def _timers(self) -> Iterator[int]:
        """Events with timing, one after another; they are kept for the next run."""
        yield from tuple(self._events)
        while True:
            self._events.append(self._event())
            yield self._events[-1]

    def _make_room(self, each: int, throttle: Throttle) -> bool:
        """End the lap where so many more repetitions do not lie within it; whether that was so."""
        full = 0 < self._work.lap < self._unaudited + each
        if full:
            self._end_lap(throttle)
        return full

    def _end_lap(self, throttle: Throttle | None = None) -> None:
        """Enqueue the repetitions that a lap lacks, and its audit: of a lap that was begun all slots are written."""
        if self._unaudited:
            while self._repetitions % self._work.lap:
                self._enqueue(throttle)
            self._enqueue_steps(self._audit, throttle)
            self._unaudited = 0

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
        beside = len(self._work.beside[0]) if self._work.beside else 0
        return 1 if self._graphs[0] is not None else len(self._steps[0]) + beside

    def _first(self, throttle: Throttle, deadline: float) -> None:
        """A repetition that loads what is loaded lazily, and tells how long one takes; then the graph."""
        events = self._timers()
        began, ended = next(events), next(events)
        self._waiting.record(began)
        self._make_room(1, throttle)
        self._enqueue(throttle, apart=True)
        self._waiting.record(ended)
        self._waiting.until(ended, deadline)
        self._repetition_s = self._runtime.eventElapsedTime(began, ended) / 1e3
        if 1 < self._launches <= GRAPH_NODES and self._beside is None:  # a graph has no time in its middle
            for turn, steps in enumerate(self._steps):
                graph = self._graphs[turn] = self._captured(steps)
                if graph is not None:
                    self._buffers.on_release(partial(self._runtime.graphExecDestroy, graph))
        self._warm = True

    def _enqueue_steps(self, steps: list[_Enqueue], throttle: Throttle | None) -> None:
        for enqueue in steps:
            enqueue()
            if throttle is not None:
                throttle.launched()

    def _enqueue(self, throttle: Throttle | None, turned: int | None = None, *, apart: bool = False) -> None:
        """Enqueue the next repetition; the event `turned` is recorded after its turn, and `apart` before its copies."""
        turn, beside = self._repetitions % len(self._steps), self._beside
        self._repetitions += 1
        self._unaudited += 1
        self._unchecked += 1
        graph = self._graphs[turn]
        if beside is not None and not apart:
            beside.begin(turn)
        if graph is None:
            self._enqueue_steps(self._steps[turn], throttle)
        else:
            self._runtime.graphLaunch(graph, self._stream)
        if turned is not None:
            self._waiting.record(turned)
        if beside is not None and apart:
            for copy in beside.copies[turn]:
                copy(self._stream)
        elif beside is not None:
            beside.end()
        if throttle is not None and (beside is not None or graph is not None):
            throttle.launched()

    def _captured(self, steps: list[_Enqueue]) -> int | None:
        """The steps of a turn as a CUDA graph, ready to launch; None where CUDA or a library cannot make one."""
        runtime, graph = self._runtime, None
        try:
            runtime.streamBeginCapture(self._stream, runtime.streamCaptureModeRelaxed)
            try:
                self._enqueue_steps(steps, None)
            finally:
                with suppress(RuntimeError):  # a capture that broke ends with an error, and no graph
                    graph = runtime.streamEndCapture(self._stream)
            return None if graph is None else int(runtime.graphInstantiate(graph))
        except (RuntimeError, DeviceError):
            return None
        finally:
            if graph is not None:
                runtime.graphDestroy(graph)

    def _late(self, unfinished: str, limit_s: float) -> DeviceError:
        """What it means that a deadline passed: slow work, or a GPU that hangs."""
        gpu, kernel = self._device.facts.gpu, self._work.kernel
        if self._waiting.drained(GRACE_S):
            return DeviceError(f"{gpu}: {kernel}: {unfinished} did not end within {limit_s:g} s", outcome=Outcome.HUNG)
        self._device.give_up(
            f"{gpu}: {kernel} hangs: {unfinished} did not end within {limit_s:g} s and {GRACE_S:g} s more; "
            f"this process cannot use this GPU any more",
            Outcome.HUNG,
        )
        return DeviceError(str(self._device.lost), gone=True, outcome=Outcome.HUNG)

    def _settle(self, limit_s: float, awaited: str) -> None:
        if not self._waiting.drained(limit_s):
            raise self._late(awaited, limit_s)

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
            work = self._work
            if work.lap:
                self._end_lap()
            last_turn = max(self._repetitions - 1, 0) % len(self._steps)
            verdict = Verdict(0, 0, repetitions=self._unchecked)
            if work.compared:
                counts = self._counted(self._buffers[FAULTS_NAME])
                verdict += checking.inside(work.kernel, counts, self._unchecked, work.compared)
                self._buffers.clear_faults()
            for output in work.outputs:
                if output.turn in (None, last_turn):
                    verdict += self._compare(output)
            self._settle(CHECK_LIMIT_S, "the check")
            self._unchecked = 0
            return verdict

    def _counted(self, address: int) -> Counts:
        self._settle(CHECK_LIMIT_S, "the check")
        counters = cleared_faults()
        self._buffers.download(counters, address)
        self._settle(CHECK_LIMIT_S, "the check")
        return Counts.of(counters)

    def _compare(self, output: Output) -> Verdict:
        buffer = self._buffers.buffer(output.buffer)
        count = self._work.elements_of(output)
        begin = self._buffers[buffer.name] + output.at * np.dtype(buffer.dtype).itemsize
        expected = output.expect(self._seed, self._repetitions)
        self._buffers.overwrite(self._counters, cleared_faults())
        counters = np.uint64(self._counters)
        defines: tuple[str, ...] = ()
        args: tuple[Scalar, ...]
        if isinstance(expected, WordsExpected):
            function = "compare_words"
            args = (np.uint64(begin), *checking.words_of(expected, count), counters)
        else:
            function, defines = "compare", (checking.element_define(buffer.dtype),)
            expected = checking.contiguous(expected, buffer.name)
            values = np.uint64(self._buffers.placed(f"values of {buffer.name}", expected.values))
            tolerance = np.uint64(self._buffers.placed(f"tolerance of {buffer.name}", expected.tolerance))
            args = (np.uint64(begin), values, tolerance, *checking.sizes_of(expected, count), counters)
        self._launch(checking.SOURCE, function, defines, count, args)
        counts = self._counted(self._counters)
        if counts.compared != count:
            raise DeviceError(
                f"{self._device.facts.gpu}: the check of {self._work.kernel} compared {counts.compared} of {count} "
                "elements"
            )
        first = None
        if counts.wrong:
            element = np.zeros(1, buffer.dtype)
            self._buffers.download(element, begin + counts.first * element.itemsize)
            self._settle(CHECK_LIMIT_S, "the check")
            first = checking.position_in_words(buffer.name, counts.first, element, expected=expected, count=count)
        return Verdict(count, counts.wrong, first, counts.worst)

    async def poison(self) -> None:
        """See `Loaded.poison`."""
        with self._device.using(f"clearing the outputs of {self._work.kernel}"):
            self._fill()
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
        """Give back all that was taken, but nothing on a GPU that hangs."""
        if self._device.lost is None:
            self._buffers.release()
