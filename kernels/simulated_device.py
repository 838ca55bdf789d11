"""A simulated GPU: a work's FLOP, bytes and activity give time, power, heat and clocks on a simulated bench.

    bench = Bench(Fleet.draw(V100, 8, seed=1), began_ns=0)
    devices = [SimulatedDevice(bench, position) for position in range(8)]

Nothing is computed: a result is what it must be, except that on a GPU with planted wrong results some of its elements
are not, in one repetition in so many. The time of a repetition follows from the model's rates (`timing`), and
everything else from `simulation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError
from ..simulation.bench import Bench, Done, Prepared
from ..simulation.fleet import GPUS_PER_NODE
from ..simulation.load import BERT, PAGERANK, SGEMM, STREAM, Workload
from ..simulation.models import PARAMETERS, GpuModel
from ..simulation.physics import Silicon, relative_time
from ..simulation.rates import rates_of
from . import fma, memory, sm
from .checking import right_value
from .device import Timed, Verdict
from .work import FAULTS_NAME, Copy, Facts, Gemm, Launch, UnitMix, WordsExpected, Work

VERSIONS = MappingProxyType({"driver": "simulated", "simulation": f"parameters {PARAMETERS}"})

LOAD_S = 0.1
"""What it takes to make a work ready (assumed)."""
# What a kernel reaches of the peaks below. fp32: the public cluster's SGEMM, 2187 ms for n = 25,536; PageRank and
# STREAM as in their rows of `simulation.load`; the rest is assumed.
_GEMM_REACH = {"fp32": 0.971, "fp64": 0.93}
_TENSOR_REACH, _VECTOR_REACH = 0.75, 0.98
_DRAM_REACH = {"pagerank": PAGERANK.bandwidth_share, "gather": 0.45}

_NOISE = {"transformer": BERT.noise}
_SHARPNESS = 4.0  # how much the longer of two parts of a time hides the shorter one; infinity for entirely


@dataclass(frozen=True)
class Timing:
    """What a repetition of a work takes on a model at its highest clock, and what it asks of the GPU."""

    unit_s: float
    workload: Workload


def timing(work: Work, model: GpuModel) -> Timing:
    """Time and demands of a work: the roofline of its arithmetic, its path, its dependent operations, its launches.

    Each part takes its size over the model's rate. The parts overlap: the whole is the root of the sum of their
    fourth powers, close to the longest one. Where products alternate with other kernels, one part waits for another,
    and they add up. A part's share in the sum says how much of the time follows it, and so how much scales with the
    SM clock. Matrix products alone have the shares that were fitted to SGEMM. DeviceError where the model has no such
    arithmetic.
    """
    gemms = sum(isinstance(step, Gemm) for step in work.turns[0])
    sharpness = 1.0 if 0 < gemms < len(work.turns[0]) else _SHARPNESS
    if work.mix is not None:
        parts = _units(work.mix, model)
    else:
        parts = [*_arithmetic(work, model), *_path(work, model), *_operations(work, model)]
    launches = sum(step.times if isinstance(step, Launch) else 1 for step in work.turns[0])
    parts.append(_Part(launches * rates_of(model).launch_us * 1e-6, clock=0.2, launch=0.8))
    powers = np.array([part.seconds for part in parts]) ** sharpness
    weights = powers / powers.sum()
    unit_s = float(powers.sum() ** (1 / sharpness))
    if gemms and gemms == len(work.turns[0]):
        clock, link, peer, launch, traffic = SGEMM.compute_share, 0.0, 0.0, 0.0, SGEMM.bandwidth_share
    else:
        shares = weights @ [(part.clock, part.link, part.peer, part.launch) for part in parts]
        clock, link, peer, launch = shares.tolist()
        moved = work.mix.dram_bytes if work.mix else work.bytes if work.path in ("dram", "pcie", "peer") else 0
        traffic = min(1.0, moved / unit_s / (model.bandwidth_gb_s * 1e9))
    return Timing(
        unit_s,
        Workload(
            work.kernel,
            activity=work.activity if work.mix is None else work.activity * _activity(parts, unit_s),
            compute_share=clock,
            bandwidth_share=traffic,
            noise=_NOISE.get(work.kernel, STREAM.noise if work.path == "dram" and not gemms else SGEMM.noise),
            memory_mib=work.memory_bytes >> 20,
            link_share=link,
            peer_share=peer,
            launch_share=launch,
        ),
    )


def apart(work: Work, model: GpuModel) -> tuple[Timing, Timing]:
    """The turns of a work and the copies beside them, each by itself."""
    turns = replace(work, kernel=f"turns of {work.kernel}", path="dram", bytes=work.turn_bytes, beside=())
    copies = replace(work, kernel=f"copies of {work.kernel}", turns=work.beside, flop=0, operations=0, beside=())
    return timing(turns, model), timing(copies, model)


def _both(turns: Timing, copies: Timing, kernel: str, silicon: Silicon, model: GpuModel) -> Timing:
    """Turns and the copies beside them on a GPU: the longer of the two, and what of the shorter is not hidden."""

    def factor(workload: Workload) -> float:
        return float(relative_time(model, silicon, workload, np.array([model.max_clock_mhz]))[0])

    turns_s, copies_s = turns.unit_s * factor(turns.workload), copies.unit_s * factor(copies.workload)
    both_s = turns_s + copies_s - float(silicon.overlap[0]) * min(turns_s, copies_s)
    weight = turns_s / (turns_s + copies_s)
    shares = {
        name: weight * getattr(turns.workload, name) + (1 - weight) * getattr(copies.workload, name)
        for name in ("compute_share", "bandwidth_share", "link_share", "launch_share")
    }
    workload = replace(turns.workload, name=kernel, **shares)
    return Timing(both_s / factor(workload), workload)


def _shared(timed: Timing, slowness: float) -> Timing:
    """The same where copies from and to the host take so much longer."""
    return replace(timed, unit_s=timed.unit_s * (1 + timed.workload.link_share * (slowness - 1)))


@dataclass(frozen=True)
class _Part:
    """A part of a repetition's time, at the highest clock."""

    seconds: float
    clock: float
    """Share of it that scales with the SM clock."""
    link: float = 0.0
    """Share that follows the link to the host ..."""
    peer: float = 0.0
    """... the links to other GPUs ..."""
    launch: float = 0.0
    """... and how fast the host launches."""
    activity: float = 0.0
    """Of the SMs, where this is all of the time; of units that work side by side."""


def _arithmetic(work: Work, model: GpuModel) -> list[_Part]:
    rates, seconds, vector_flop = rates_of(model), 0.0, work.flop

    def peak(precision: str, *, tensor: bool) -> float:
        flop_per_s = rates.flop_per_s(model, precision, tensor=tensor)
        if flop_per_s is None:
            raise DeviceError(f"{model.name} has no {precision} arithmetic, so it cannot run {work.kernel}")
        return flop_per_s

    for step in work.turns[0]:
        if isinstance(step, Gemm):
            flop = 2 * step.m * step.n * step.k * step.batch
            vector_flop -= flop
            reach = _GEMM_REACH.get(step.precision, _TENSOR_REACH)
            seconds += flop / (peak(step.precision, tensor=True) * reach)
    if vector_flop > 0:
        share = float(work.parameters.get("share", 1.0))  # of the multiprocessors, in power-share
        precision = work.precision if work.precision in rates.vector or not seconds else "fp32"
        seconds += vector_flop / (peak(precision, tensor=False) * _VECTOR_REACH * share)
    return [_Part(seconds, clock=1.0)] if seconds else []


def _path(work: Work, model: GpuModel) -> list[_Part]:
    rates = rates_of(model)
    if not work.bytes or work.path == "none":
        return []
    if work.path == "l2":
        return [_Part(work.bytes / (rates.l2_gb_s(model) * 1e9), clock=1.0)]
    if work.path == "pcie":
        return [_Part(work.bytes / (rates.pcie_gb_s * 1e9), clock=0.0, link=1.0)]
    if work.path == "peer":
        return [_Part(work.bytes / (rates.peer_gb_s * 1e9), clock=0.0, peer=1.0)]
    reach = _DRAM_REACH.get(work.kernel, STREAM.bandwidth_share)
    clock = PAGERANK.compute_share if work.kernel == "pagerank" else STREAM.compute_share
    return [_Part(work.bytes / (model.bandwidth_gb_s * 1e9 * reach), clock=clock)]


_UNIT_ACTIVITY = {**fma.ACTIVITY, "bf16": fma.ACTIVITY["fp16"], "l2": 0.35, "dram": 0.2, "shared": 0.3}
"""Of a unit that is always busy, with what brings its operands: that of the kernel that asks it alone; of shared memory
assumed."""
_ISSUED, _SHARED_BYTES = 4, 128  # instructions of warps, and bytes of shared memory, of a multiprocessor in a clock


def _units(mix: UnitMix, model: GpuModel) -> list[_Part]:
    """The multiprocessors, which take as long as the slowest of their pipes or as issuing takes; each memory by its
    size over its rate; and the steps of blocks that run one after another."""
    rates, hz = rates_of(model), model.max_clock_mhz * 1e6
    share = mix.sms / rates.sms
    busy_s: dict[str, float] = {}
    for precision, operations in mix.operations.items():
        flop_per_s = rates.flop_per_s(model, precision, tensor=False)
        if flop_per_s is None:
            raise DeviceError(f"{model.name} has no {precision} arithmetic, so it cannot run these chains")
        busy_s[precision] = operations / (flop_per_s * _VECTOR_REACH * share)
    compute_s = max([mix.instructions / (_ISSUED * mix.sms * hz), *busy_s.values()])
    computing = sum(_UNIT_ACTIVITY[precision] * seconds for precision, seconds in busy_s.items()) / compute_s
    memory_s = mix.dram_bytes / (model.bandwidth_gb_s * 1e9 * STREAM.bandwidth_share)
    cache_s = mix.l2_bytes / (rates.l2_gb_s(model) * 1e9 * share)
    shared_s = mix.shared_bytes / (_SHARED_BYTES * mix.sms * hz)
    nanoseconds, scaling = rates.latency_ns(mix.footprint) if mix.footprint else (0.0, 0.0)
    waits_ns = nanoseconds + mix.sleep_ns
    return [
        _Part(compute_s, clock=1.0, activity=computing),
        _Part(memory_s, clock=STREAM.compute_share, activity=_UNIT_ACTIVITY["dram"]),
        _Part(cache_s, clock=1.0, activity=_UNIT_ACTIVITY["l2"]),
        _Part(shared_s, clock=1.0, activity=_UNIT_ACTIVITY["shared"]),
        _Part(mix.steps * mix.step_clocks / hz, clock=1.0),
        _Part(mix.steps * waits_ns * 1e-9, clock=scaling / waits_ns if waits_ns else 0.0),
    ]


def _activity(parts: Sequence[_Part], unit_s: float) -> float:
    """Of units that work side by side: each for its share of the time. No more than that of a matrix product, which
    keeps a multiprocessor as busy as is known."""
    return min(1.0, sum(part.activity * part.seconds for part in parts) / unit_s)


def _operations(work: Work, model: GpuModel) -> list[_Part]:
    rates = rates_of(model)
    if work.kernel == "chase":
        footprint = max(buffer.bytes for buffer in work.buffers if buffer.place == "device")
        nanoseconds, scaling = rates.latency_ns(footprint)
        return [_Part(work.operations * nanoseconds * 1e-9, clock=scaling / nanoseconds)]
    if work.kernel == "atomics":
        return [_Part(work.operations / (rates.atomics_per_clock * rates.sms * model.max_clock_mhz * 1e6), clock=0.9)]
    return []


def check_s(work: Work, model: GpuModel, repetitions: int) -> float:
    """How long the check of so many repetitions takes, s: the bytes of the outputs once and of the audit once a lap,
    over the path to where they lie."""
    rates, buffers = rates_of(model), {buffer.name: buffer for buffer in work.buffers}
    rate = {"device": model.bandwidth_gb_s * STREAM.bandwidth_share, "host": rates.pcie_gb_s, "peer": rates.peer_gb_s}

    def seconds(name: str, size: int | None = None) -> float:
        buffer = buffers[name]
        return (buffer.bytes if size is None else size) / (rate[buffer.place] * 1e9)

    total = sum(seconds(output.buffer, work.bytes_of(output)) for output in work.outputs if output.turn in (None, 0))
    for step in work.audit if work.lap else ():
        if isinstance(step, Copy):
            once = max(seconds(step.source, step.bytes), seconds(step.target, step.bytes))
        else:
            assert isinstance(step, Launch), "an audit compares or copies"
            read = [argument for argument in step.args if isinstance(argument, str) and argument != FAULTS_NAME]
            once = step.times * sum(map(seconds, read))
        total += once * -(-repetitions // work.lap)
    return total


def facts_of(
    model: GpuModel, *, gpu: str = "", node: str = "", index: int = 0, peers: int = GPUS_PER_NODE - 1
) -> Facts:
    """What a GPU of a model is; without a name, any of them in a full node."""
    rates = rates_of(model)
    return Facts(
        gpu=gpu,
        model=model.name,
        node=node,
        index=index,
        capability=rates.capability,
        sms=rates.sms,
        memory_bytes=model.memory_gb << 30,
        l2_bytes=rates.l2_bytes,
        max_clock_mhz=model.max_clock_mhz,
        bandwidth_gb_s=float(model.bandwidth_gb_s),
        peers=peers,
        shared_bytes=rates.shared_kib << 10,
    )


class SimulatedDevice:
    """The GPU at a position of a bench's fleet, as a `Device`. It is held until `close`."""

    simulated = True

    def __init__(self, bench: Bench, position: int) -> None:
        self.bench, self.position = bench, position
        model, identity = bench.fleet.model, bench.who[position]
        peers = min(bench.fleet.per_node, len(bench.fleet) - (position - identity.device)) - 1
        self.facts = facts_of(model, gpu=identity.uuid, node=identity.host, index=identity.device, peers=peers)
        self.versions = VERSIONS
        self._open = True
        bench.hold(position)

    def now_ns(self) -> int:
        """UTC on the simulated clock."""
        return self.bench.now_ns

    def free_bytes(self) -> int:
        """See `Device.free_bytes`."""
        return self.bench.free_bytes(self.position)

    async def load(self, work: Work, *, seed: int) -> SimulatedLoaded:
        """Make a work ready: see `Device.load`."""
        model = self.bench.fleet.model
        timings: tuple[Timing, ...] = apart(work, model) if work.beside else (timing(work, model),)
        if any(buffer.place == "peer" for buffer in work.buffers) and not self.facts.peers:
            raise DeviceError(
                f"{self.bench.name(self.position)} has no peer in its node, so it cannot run {work.kernel}"
            )
        self.bench.take(self.position, work.memory_bytes)
        try:
            await self.bench.pause(LOAD_S)
            slowness = self.bench.host_slowness(self.position)
            timings = tuple(_shared(timed, slowness) for timed in timings)
            if work.beside:
                silicon = self.bench.fleet.silicon.take(np.array([self.position]))
                timings = (_both(timings[0], timings[1], work.kernel, silicon, model), *timings)
            parts = [self.bench.prepare(self.position, timed.workload, timed.unit_s) for timed in timings]
        except BaseException:
            self.bench.give_back(self.position, work.memory_bytes)
            raise
        return SimulatedLoaded(self.bench, work, parts[0], seed, parts[1:])

    async def pause(self, seconds: float) -> None:
        """Leave the GPU alone for a time."""
        await self.bench.pause(seconds)

    def others(self) -> Sequence[str]:
        """Nobody else is on a simulated GPU."""
        return ()

    def close(self) -> None:
        """Leave the GPU, whose clock falls where nobody else is there."""
        if self._open:
            self._open = False
            self.bench.release(self.position)


class SimulatedLoaded:
    """A work on a simulated GPU, as a `Loaded`."""

    def __init__(self, bench: Bench, work: Work, prepared: Prepared, seed: int, parts: Sequence[Prepared] = ()) -> None:
        """`parts`: the turns and the copies beside them by themselves, where the work has such."""
        self.work, self._parts = work, parts
        self._bench, self._prepared, self._seed = bench, prepared, seed
        self._fault = bench.fleet.fault_of(prepared.gpu)
        self._random = bench.draws(f"wrong results of {work.kernel}", prepared.gpu)
        self._caught = bool(self._random.random() < self._fault.wrong_share)
        self._taken = True
        self._forget()

    def _forget(self) -> None:
        self._wrong: list[int] = []
        """Places of the wrong elements of all repetitions."""
        self._wrong_checked = 0
        """How many of them a check has told."""
        self._repetitions, self._unchecked, self._busy_s = 0, 0, 0.0

    async def run(self, repeats: int, *, each: int = 1, limit_s: float, apart: bool = False) -> Timed:
        """Run: see `Loaded.run`. Turns and copies apart are all the turns, and then all the copies."""
        if self.work.lap and each > self.work.lap:
            raise ValueError(f"{self.work.kernel}: {each} repetitions do not lie within a lap of {self.work.lap}")
        if self._parts and apart:
            turns, copies = [await self._bench.work(part, repeats, each, limit_s=limit_s) for part in self._parts]
            done = Done(turns.began_ns, copies.ended_ns, turns.times_s + copies.times_s)
        else:
            turns = done = await self._bench.work(self._prepared, repeats, each, limit_s=limit_s)
        self._repetitions += repeats * each
        self._unchecked += repeats * each
        self._go_wrong(repeats * each)
        self._busy_s += float(done.times_s.sum()) * each
        turns_ms = turns.times_s * 1000 if self._parts and each == 1 else None
        return Timed(done.began_ns, done.ended_ns, done.times_s * 1000, repeats * each, turns_ms)

    async def check(self) -> Verdict:
        """Compare the outputs, and take what was compared since the last check: see `Loaded.check`."""
        work, repetitions = self.work, self._unchecked
        await self._bench.pause(check_s(work, self._bench.fleet.model, repetitions))
        if self._bench.lost(self._prepared.gpu):
            raise self._bench.gone(self._prepared.gpu)
        elements = sum(self._counts()) + repetitions * work.compared
        if not elements:
            return Verdict(0, 0)
        if not self._repetitions:
            return Verdict(elements, elements, "nothing was written to it", float("inf"))
        wrong = self._wrong[self._wrong_checked :]
        self._wrong_checked, self._unchecked = len(self._wrong), 0
        if not wrong:
            return Verdict(elements, 0, repetitions=repetitions)
        first, worst = self._first(wrong[0])
        compares_inside = work.compared and not work.audit and work.kernel != "memory"
        by_sm = {self._wrong[0] % self._sms: len(wrong)} if compares_inside else {}
        return Verdict(elements, len(wrong), first, worst, repetitions, by_sm)

    async def read(self, buffer: str) -> NDArray[Any]:
        """See `Loaded.read`: the findings of memory.cu and sm.cu. A wrong word has a bit that is stuck at 1; wrong
        results are those of one lane of one multiprocessor."""
        wrong = self._wrong
        if buffer == "log":
            return memory.log_of_stuck_bits([place % self.work.compared for place in wrong])
        assert buffer == "sms", f"no simulated GPU writes {buffer}"
        sms = self._sms
        slowness = self._busy_s / (self._repetitions * self._prepared.unit_s)
        clock_mhz = self._bench.fleet.model.max_clock_mhz / slowness
        block_us = 1e6 * self._busy_s / (2 * self._repetitions)
        unharmed = sm.Multiprocessor(0, 2 * self._repetitions, 0, (), (), clock_mhz, block_us)
        rows = [replace(unharmed, number=number) for number in range(sms)]
        if wrong:
            bad = wrong[0] % sms
            rows[bad] = replace(rows[bad], wrong=len(wrong), lanes=(wrong[0] % 32,), parts=("fp32",))
        return sm.written(rows)

    async def poison(self) -> None:
        """Forget what was written."""
        self._forget()

    def unload(self) -> None:
        """Give the memory back."""
        if self._taken:
            self._taken = False
            self._bench.give_back(self._prepared.gpu, self.work.memory_bytes)

    @property
    def _sms(self) -> int:
        return rates_of(self._bench.fleet.model).sms

    def _counts(self) -> list[int]:
        return [self.work.elements_of(output) for output in self.work.outputs]

    def _go_wrong(self, repetitions: int) -> None:
        """Draw which of some repetitions are wrong, and where."""
        elements = sum(self._counts()) or self.work.compared
        if not self._caught or not elements:
            return
        times = self._random.binomial(repetitions, 1 / self._fault.wrong_one_in)
        if self.work.kernel == "memory":  # a cell that is bad fails in the first pattern that tries it, and stays bad
            times = 0 if self._wrong else 1
        count = int(self._random.geometric(0.1, times).sum())
        self._wrong += np.unique(self._random.integers(0, elements, count)).tolist()

    def _first(self, place: int) -> tuple[str, float]:
        """The first wrong element in words, and its error in tolerances: it is twice what it should be, or off by as
        much as can be seen."""
        for output, count in zip(self.work.outputs, self._counts(), strict=True):
            if place >= count:
                place -= count
                continue
            expected = output.expect(self._seed, max(self._repetitions, 1))
            if isinstance(expected, WordsExpected):
                break
            right, tolerance = right_value(expected, place)
            value = 2 * right if abs(right) > 2 * tolerance else right + 4 * tolerance + 1
            worst = abs(value - right) / tolerance if tolerance > 0 else float("inf")
            return f"{output.buffer}[{place}] is {value:.9g} and should be {right:.9g}", worst
        return f"{self.work.kernel}, place {place}, compared on the GPU", float("inf")
