"""Runs NVRTC's PTX in numpy, many threads at once, over the memory of a stand-in for a GPU.

As many blocks are in flight as a GPU would have resident; all their threads that are at the same instruction do it
together, those that are behind first; blocks do not wait for each other. What a kernel must not do is a `Fault`:
accesses out of bounds, misaligned, of what nothing wrote, races, a barrier that is never reached. Bits can be made
wrong on purpose (`Harm`), so that tests see whether they are found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whorl.tests.kernels.device_memory import LOGGED, Access, Allocation, Bytes, Fault, Order, SharedRaces, race
from whorl.tests.kernels.instructions import Action, Reader, Selection, build, reader
from whorl.tests.kernels.ptx import TYPES, UNSIGNED, Instruction, Kernel, parse

RESIDENT_THREADS, RESIDENT_BLOCKS = 2048, 32
"""On one multiprocessor at a time."""
ENDLESS = 3_000_000
"""Instructions of a wave of blocks after which it is said to have no end."""
CLOCKS_PER_STEP, STEPS_PER_NS = 2, 1
"""%clock64 and %globaltimer: time is counted in instructions."""

RUNNING, AT_BARRIER, AT_WARP, ENDED = range(4)


@dataclass
class Harm:
    """What goes wrong on purpose in kernels of a name, or in all of them."""

    kernel: str | None = None
    blocks: frozenset[int] = frozenset()
    """Blocks that are not run."""
    operations: frozenset[str] = frozenset()
    """As "fma" or "fma.f32": whose results may be wrong, by one bit. Stores and atomics are lost instead."""
    chance: float = 1.0
    """How often, where `sm` and `lane` fit."""
    sm: int | None = None
    lane: int | None = None
    bit: int = 0
    launches: Callable[[int], bool] = lambda number: True
    """Which launches, by their number."""
    seed: int = 0
    hits: list[tuple[str, int, int]] = field(default_factory=list)
    """Kernel, block and thread of each wrong result."""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def touches(self, launch: Launch) -> bool:
        return self.kernel in (None, launch.kernel.name) and self.launches(launch.number)

    def hit(self, wave: Wave, threads: Selection, step: Step) -> NDArray[np.bool_]:
        """Of the threads that do a step, which do it wrong."""
        numbers = wave.numbers[threads]
        if not {step.name, f"{step.name}.{step.instruction.type}"} & self.operations:
            return np.zeros(numbers.size, bool)
        hit = np.full(numbers.size, True) if self.chance >= 1 else self._random.random(numbers.size) < self.chance
        if self.lane is not None:
            hit &= wave.lanes[threads] == self.lane
        if self.sm is not None:
            hit &= wave.sms[threads] == self.sm
        per_block = wave.launch.threads
        self.hits += [(wave.launch.kernel.name, int(n) // per_block, int(n) % per_block) for n in numbers[hit]]
        return hit


@dataclass(frozen=True)
class Step:
    """An instruction that is ready to run."""

    instruction: Instruction
    action: Action | None
    """None for those that decide what is done next."""
    target: str
    """The register that it writes, if it is one."""
    jump: int
    """Where a branch goes."""
    name: str
    guard: str | None
    negated: bool
    mask: Reader | None
    """The lanes that do it together, where it is an instruction of a warp."""


@lru_cache(maxsize=512)
def steps(kernel: Kernel) -> tuple[Step, ...]:
    """The code of a kernel, ready to run."""
    ready = []
    for instruction in kernel.code:
        name = instruction.parts[0]
        flow = name in ("bra", "ret", "bar")
        target = instruction.operands[0] if instruction.operands else ""
        jump = kernel.labels[target] if name == "bra" else -1
        action = None if flow else build(kernel, instruction)
        guard = instruction.guard, instruction.negated
        mask = reader(kernel, instruction.operands[-1], "u32") if name == "shfl" else None
        if name == "bar" and instruction.parts != ("bar", "sync"):
            raise NotImplementedError(instruction.text)
        ready.append(Step(instruction, action, target.split("|")[0], jump, name, *guard, mask=mask))
    return tuple(ready)


@lru_cache(maxsize=512)
def _narrowest(kernel: Kernel) -> int:
    """Bytes of the smallest access of a kernel to memory, 4 at most."""
    accesses = [step for step in kernel.code if step.parts[0] in ("ld", "st", "atom")]
    return min([np.dtype(TYPES[step.type]).itemsize for step in accesses if step.type in TYPES] + [4])


class Memory:
    """All the memory that kernels can reach by global addresses."""

    def __init__(self) -> None:
        self.allocations: dict[int, Allocation] = {}

    def take(self, size: int, device: int = 0, *, written: bool = False) -> Allocation:
        """New memory. written: whether reading it is no fault before something wrote it."""
        allocation = Allocation(size, device, written=written)
        self.allocations[allocation.base] = allocation
        return allocation

    def holding(self, array: NDArray[Any]) -> Allocation:
        """New memory with the content of an array."""
        allocation = self.take(array.nbytes, written=True)
        allocation.raw[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return allocation

    def find(self, address: int) -> Allocation | None:
        """The allocation that an address lies in."""
        for base, allocation in self.allocations.items():
            if base <= address < base + allocation.size:
                return allocation
        return None

    def nearest(self, address: int) -> Allocation | None:
        """The allocation that begins last before an address."""
        before = [base for base in self.allocations if base <= address]
        return self.allocations[max(before)] if before else None


@dataclass(frozen=True)
class Shape:
    """Blocks of a grid, threads of a block, and shared memory beside what the kernel declares."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0


class Launch:
    """One kernel's grid on a GPU of `sms` multiprocessors. `arguments` are numpy scalars, addresses among them."""

    def __init__(
        self,
        module: Module,
        name: str,
        shape: Shape,
        arguments: Sequence[np.generic],
        *,
        sms: int,
        harms: Sequence[Harm] = (),
        number: int = 0,
    ) -> None:
        self.kernel = kernel = module.kernels[name]
        self.grid, self.block, self.arguments = shape.grid, shape.block, arguments
        self.memory, self.sms, self.number = module.memory, sms, number
        self.shared_bytes = kernel.shared_bytes + shape.shared
        self.threads, self.blocks = prod(shape.block), prod(shape.grid)
        self.harms = [harm for harm in harms if harm.touches(self)]
        self.order = Order(self.threads)
        self.clock = 1
        self.done = [0] * len(kernel.code)
        """How often threads did each instruction."""
        self._logged = 0
        self._touched: dict[int, Allocation] = {}
        self._check_arguments()

    def _check_arguments(self) -> None:
        kinds = list(self.kernel.parameters.values())
        sizes = [np.dtype(TYPES[kind]).itemsize for kind in kinds]
        assert [argument.nbytes for argument in self.arguments] == sizes, (
            f"{self.kernel.name} takes {', '.join(kinds)}, and is given "
            f"{', '.join(argument.dtype.name for argument in self.arguments)}"
        )

    def run(self) -> None:
        """All blocks, wave after wave. Fault where a thread does what it must not."""
        resident = self.sms * max(1, min(RESIDENT_THREADS // self.threads, RESIDENT_BLOCKS))
        dropped = frozenset[int]().union(*(harm.blocks for harm in self.harms))
        blocks = np.array([block for block in range(self.blocks) if block not in dropped], np.int64)
        with np.errstate(all="ignore"):
            for first in range(0, blocks.size, resident):
                Wave(self, blocks[first : first + resident]).run()
            self.compare_accesses()

    def log(self, allocation: Allocation, access: Access) -> None:
        """Remember accesses, which are compared at the end of the launch."""
        allocation.log.append(access)
        self._touched[allocation.base] = allocation
        self._logged += access.offsets.size
        if self._logged > LOGGED:
            self.compare_accesses()

    def compare_accesses(self) -> None:
        """Fault if two threads raced."""
        for allocation in self._touched.values():
            log, allocation.log = allocation.log, []
            raced = race(log, allocation.size, self.order)
            if raced is not None:
                offset, (first, began), (second, ended) = raced
                texts = {access.time: access.instruction for access in log}
                raise Fault(
                    f"{self.kernel.name}: {self.where(first)} and {self.where(second)} race for {allocation.label}, "
                    f"byte {offset} ({allocation.base + offset:#x}): {texts[began]}, {texts[ended]}"
                )
        self._touched, self._logged = {}, 0

    def where(self, number: int) -> str:
        """A thread by its number in the grid, in words."""
        return f"block {number // self.threads}, thread {number % self.threads}"


class Registers(dict[str, NDArray[Any]]):
    """The registers of all threads, each made when it is first written."""

    def __init__(self, wave: Wave) -> None:
        super().__init__()
        self._wave = wave

    def __missing__(self, name: str) -> NDArray[Any]:
        self._wave.fail(slice(None), 0, f"reads {name}, which nothing wrote")
        raise AssertionError


class Wave:
    """Blocks that are in flight together, all their threads in arrays."""

    def __init__(self, launch: Launch, blocks: NDArray[np.int64]) -> None:
        self.launch, self.kernel = launch, launch.kernel
        self.size = int(blocks.size) * launch.threads
        local = np.arange(self.size)
        self.row, thread = np.divmod(local, launch.threads)
        """Of each thread the place of its block among those in flight."""
        self._blocks, self._thread = blocks, thread
        self.numbers = blocks[self.row] * launch.threads + thread
        """Of each thread its number in the grid."""
        warps_per_block = -(-launch.threads // 32)
        self.warps, self.lanes = self.row * warps_per_block + thread // 32, thread % 32
        self._bits = (np.uint64(1) << self.lanes.astype(np.uint64)).astype(np.uint32)
        self._alive = self.size
        """Threads that have not ended."""
        self.warp_count = int(blocks.size) * warps_per_block
        self.sms = blocks[self.row] % launch.sms
        self.state = np.zeros(self.size, np.int8)
        self.pc = np.zeros(self.size, np.int64)
        self.registers = Registers(self)
        self._special: dict[str, NDArray[Any]] = {}
        self._steps = steps(launch.kernel)
        self._step: Step = self._steps[0]
        self._end = launch.clock + ENDLESS
        stride = -(-max(launch.shared_bytes, 1) // 16) * 16 + 16
        self._shared = Bytes(np.zeros(blocks.size * stride, np.uint8), written=False)
        self._shared_stride = stride
        self._races = SharedRaces(blocks.size * stride, _narrowest(launch.kernel), self.warps)

    # Registers

    def count(self, threads: Selection) -> int:
        return self.size if isinstance(threads, slice) else len(threads)

    def special(self, name: str) -> NDArray[Any]:
        """A special register, as %tid.x."""
        clocks = {"%clock64": CLOCKS_PER_STEP, "%globaltimer": STEPS_PER_NS}
        if name in clocks:
            return np.full(self.size, clocks[name] * (self.launch.clock + 1000), np.uint64)
        if not self._special:
            self._special = self._specials()
        if name not in self._special:
            raise NotImplementedError(f"{self.kernel.name}: {name} is not known to the interpreter")
        return self._special[name]

    def _specials(self) -> dict[str, NDArray[Any]]:
        block = self._blocks[self.row]
        values: dict[str, NDArray[Any]] = {"%smid": self.sms}
        shape, sizes = self.launch.grid, self.launch.block
        for axis, name in enumerate("xyz"):
            values[f"%ntid.{name}"] = np.full(self.size, sizes[axis])
            values[f"%nctaid.{name}"] = np.full(self.size, shape[axis])
            values[f"%tid.{name}"] = self._thread // prod(sizes[:axis]) % sizes[axis]
            values[f"%ctaid.{name}"] = block // prod(shape[:axis]) % shape[axis]
        return values

    def fail(self, threads: Selection, index: int, deed: str, address: int | None = None) -> None:
        """Fault of one of `threads`."""
        number = int(self.numbers[threads][index])
        at = "" if address is None else f" at {address:#x}"
        place = f"{self.kernel.name}, {self.launch.where(number)}"
        raise Fault(f"{place}: {deed}{at}: {self._step.instruction.text}")

    # Memory

    def _place(
        self, threads: Selection, space: str, addresses: NDArray[np.uint64], size: int
    ) -> list[tuple[Selection, Bytes, NDArray[np.int64]]]:
        """Where `size` bytes at each address lie: threads, memory and offsets in it. Fault where they do not."""
        if np.bitwise_or.reduce(addresses) & np.uint64(size - 1):
            first = int(np.flatnonzero(addresses & np.uint64(size - 1))[0])
            self.fail(threads, first, f"misaligned access of {size} bytes to {space} memory", int(addresses[first]))
        if space == "global":
            return self._global(threads, addresses, size)
        room = self.launch.shared_bytes
        past = addresses + np.uint64(size) > room
        if past.any():
            first = int(np.flatnonzero(past)[0])
            self.fail(threads, first, f"out of bounds of {room} bytes of shared memory", int(addresses[first]))
        return [(threads, self._shared, self.row[threads] * self._shared_stride + addresses.astype(np.int64))]

    def _global(
        self, threads: Selection, addresses: NDArray[np.uint64], size: int
    ) -> list[tuple[Selection, Bytes, NDArray[np.int64]]]:
        lowest, highest = int(addresses.min()), int(addresses.max())
        allocation = self.launch.memory.find(lowest)
        if allocation is not None and highest + size <= allocation.base + allocation.size:
            return [(threads, allocation, (addresses - np.uint64(allocation.base)).astype(np.int64))]
        places: list[tuple[Selection, Bytes, NDArray[np.int64]]] = []
        left_over, numbers = np.arange(addresses.size), np.arange(self.size)[threads]
        while left_over.size:
            start = int(addresses[left_over[0]])
            allocation = self.launch.memory.find(start)
            if allocation is None or start + size > allocation.base + allocation.size:
                near = self.launch.memory.nearest(start)
                place = (
                    "of no memory" if near is None else f"{start - near.base} bytes into {near.label} of {near.size}"
                )
                self.fail(threads, int(left_over[0]), f"out of bounds: {place}", start)
            else:
                end = np.uint64(allocation.base + allocation.size - size)
                inside = (addresses[left_over] >= np.uint64(allocation.base)) & (addresses[left_over] <= end)
                offsets = (addresses[left_over[inside]] - np.uint64(allocation.base)).astype(np.int64)
                places.append((numbers[left_over[inside]], allocation, offsets))
                left_over = left_over[~inside]
        return places

    def _note(
        self, threads: Selection, memory: Bytes, offsets: NDArray[np.int64], size: int, *, kind: str, strong: bool
    ) -> None:
        """Remember an access, to find races."""
        if isinstance(memory, Allocation):
            text = self._step.instruction.text
            access = Access(kind, strong, size, offsets, self.numbers[threads], self.launch.clock, text)
            self.launch.log(memory, access)
        elif memory is self._shared:
            lines = np.arange(self.size)[threads]
            index = self._races.note(Access(kind, strong, size, offsets, lines, self.launch.clock, ""))
            if index is not None:
                offset = offsets[index] % self._shared_stride
                self.fail(threads, index, f"races with another thread for shared memory, byte {offset}")

    def load(
        self, threads: Selection, space: str, addresses: NDArray[np.uint64], shape: tuple[int, int], *, strong: bool
    ) -> list[NDArray[Any]]:
        """`shape[1]` numbers of `shape[0]` bytes from each address, as unsigned integers."""
        width, count = shape
        columns = [np.empty(addresses.size, UNSIGNED[width]) for _ in range(count)]
        places = self._place(threads, space, addresses, width * count)
        for part, memory, offsets in places:
            for number, column in enumerate(columns):
                missing = memory.unwritten(offsets + width * number, width)
                if missing is not None:
                    first = int(np.flatnonzero(missing)[0])
                    name = memory.label if isinstance(memory, Allocation) else "shared memory"
                    address = memory.base + int(offsets[first]) if isinstance(memory, Allocation) else None
                    self.fail(part, first, f"reads what nothing wrote: {name}, byte {offsets[first]}", address)
                values = memory.view(UNSIGNED[width])[offsets // width + number]
                if len(places) == 1:
                    columns[number] = values
                else:
                    column[np.isin(np.arange(self.size)[threads], part)] = values
            self._note(part, memory, offsets, width * count, kind="read", strong=strong)
        return columns

    def store(
        self, threads: Selection, space: str, addresses: NDArray[np.uint64], columns: Sequence[Any], *, strong: bool
    ) -> None:
        """A vector of numbers, as unsigned integers, to each address."""
        width = columns[0].dtype.itemsize
        places = self._place(threads, space, addresses, width * len(columns))
        for part, memory, offsets in places:
            self._note(part, memory, offsets, width * len(columns), kind="write", strong=strong)
            for number, column in enumerate(columns):
                values = column
                if len(places) > 1 and np.ndim(column):
                    values = column[np.isin(np.arange(self.size)[threads], part)]
                memory.view(UNSIGNED[width])[offsets // width + number] = values
                memory.mark(offsets + width * number, width)

    def atomic(
        self,
        threads: Selection,
        space: str,
        addresses: NDArray[np.uint64],
        operation: np.ufunc,
        values: NDArray[Any],
        *,
        unused: bool,
    ) -> NDArray[Any]:
        """An atomic operation of each thread, one after the other; what each found there."""
        dtype = values.dtype
        ((_, memory, offsets),) = self._place(threads, space, addresses, dtype.itemsize)
        missing = memory.unwritten(offsets, dtype.itemsize)
        if missing is not None:
            self.fail(threads, int(np.flatnonzero(missing)[0]), "adds to what nothing wrote")
        self._note(threads, memory, offsets, dtype.itemsize, kind="write", strong=True)
        cells, at = memory.view(dtype), offsets // dtype.itemsize
        before: NDArray[Any] = cells[at]
        if unused or np.unique(at).size == at.size:
            operation.at(cells, at, values)
            return before
        for index, place in enumerate(at.tolist()):
            before[index] = cells[place]
            cells[place] = operation(before[index], values[index])
        return before

    # Which threads do what

    def run(self) -> None:
        """Until all threads have ended."""
        while True:
            running = np.flatnonzero(self.state == RUNNING)
            if not running.size:
                if (self.state == ENDED).all():
                    return
                self._stuck()
            here = self.pc[running]
            at = int(here.min())
            self._run_together(running[here == at], at, running[here != at])

    def _stuck(self) -> None:
        waiting = np.flatnonzero((self.state == AT_BARRIER) | (self.state == AT_WARP))
        place = int(self.pc[waiting[0]])
        at_warp = self.state[waiting[0]] == AT_WARP
        self._step = self._steps[place if at_warp else place - 1]
        self.fail(waiting, 0, "waits for threads that never come")

    def _run_together(self, group: NDArray[np.int64], at: int, others: NDArray[np.int64]) -> None:
        """Threads at one instruction go on until they part, wait, end or reach others."""
        launch, code = self.launch, self._steps
        others_at = self.pc[others]
        limit = int(others_at[others_at > at].min(initial=len(code)))
        done, everybody = launch.done, slice(None)
        threads: Selection = everybody if group.size == self.size else group
        while at < limit:
            step = self._step = code[at]
            launch.clock += 1
            if launch.clock > self._end:
                self.fail(threads, 0, "does not come to an end")
            active = threads
            if step.guard is not None:
                chosen = self.registers[step.guard][threads] ^ step.negated
                if not chosen.all():
                    active = group[chosen]
            if step.action is not None:
                if step.mask is not None:
                    group, waits = self._gather_warps(step, group, at)
                    if waits or not group.size:
                        return
                    active = threads = everybody if group.size == self.size else group
                if number := self.size if active is everybody else len(active):
                    done[at] += number
                    if launch.harms:
                        self._do_wrongly(step, active)
                    else:
                        step.action(self, active)
                at += 1
                continue
            if step.name == "bra":
                active_lanes = self.count(active)
                if active_lanes == 0:
                    at += 1
                    continue
                if active_lanes < group.size:
                    self.pc[threads] = at + 1
                    self.pc[active] = step.jump
                    return
                at = step.jump
                if (others_at == at).any():
                    break
                limit = int(others_at[others_at > at].min(initial=len(code)))
                continue
            self.pc[threads] = at + 1
            self.state[active] = ENDED if step.name == "ret" else AT_BARRIER
            self._alive -= self.count(active) if step.name == "ret" else 0
            self._release()
            return
        self.pc[threads] = at
        if at >= len(code):
            self.state[threads] = ENDED
            self._alive -= self.count(threads)

    def _do_wrongly(self, step: Step, threads: Selection) -> None:
        """A step of threads of which some do it wrong."""
        assert step.action is not None
        numbers = np.arange(self.size)[threads]
        hits = [(harm, harm.hit(self, threads, step)) for harm in self.launch.harms]
        loses = step.name in ("st", "atom")
        if loses:
            threads = numbers[~np.logical_or.reduce([hit for _, hit in hits])]
        if self.count(threads):
            step.action(self, threads)
        for harm, hit in hits:
            if hit.any() and not loses:
                register = self.registers[step.target]
                register[numbers[hit]] ^= register.dtype.type(1 << harm.bit)

    # Barriers

    def _release(self) -> None:
        """Let blocks go on of which all threads that have not ended are at the barrier."""
        count = self._blocks.size
        waiting = np.bincount(self.row[self.state == AT_BARRIER], minlength=count)
        alive = np.bincount(self.row[self.state != ENDED], minlength=count)
        ready = (waiting == alive) & (waiting > 0)
        if not ready.any():
            return
        going = np.flatnonzero(ready[self.row] & (self.state == AT_BARRIER))
        self.state[going] = RUNNING
        self._races.barrier(going, self.launch.clock)
        for row in np.flatnonzero(ready).tolist():
            self.launch.order.barriers[int(self._blocks[row])].append(self.launch.clock)

    def _missing(self, step: Step, group: NDArray[np.int64], at: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Threads at an instruction of a warp, those that waited there included, and which of them lack others."""
        waiting = np.flatnonzero((self.state == AT_WARP) & (self.pc == at))
        together = group if not waiting.size else np.sort(np.concatenate([group, waiting]))
        self.state[waiting] = RUNNING
        assert step.mask is not None
        masks = np.broadcast_to(step.mask(self, together), together.shape)
        outside = masks & self._bits[together] == 0
        if outside.any():
            self.fail(together, int(np.flatnonzero(outside)[0]), "is not in the mask of lanes that it gives")
        if together.size == self._alive:
            return together, np.zeros(together.size, bool)
        absent = self.state != ENDED
        absent[together] = False
        lanes = np.bincount(self.warps[absent], self._bits[absent], self.warp_count).astype(np.uint32)
        return together, masks & lanes[self.warps[together]] != 0

    def _gather_warps(self, step: Step, group: NDArray[np.int64], at: int) -> tuple[NDArray[np.int64], bool]:
        """The threads that do an instruction of a warp now; whether others of the group have to wait, or all do."""
        together, lacking = self._missing(step, group, at)
        if not lacking.any():
            self.pc[together] = at
            return together, False
        waiting = together[lacking]
        self.state[waiting], self.pc[together] = AT_WARP, at
        return together[~lacking], bool(lacking.all())


def run_kernel(
    module: Module, name: str, shape: Shape, arguments: Sequence[np.generic], **options: Any
) -> Counter[str]:
    """Launch a kernel of a module and wait for its end; how often threads did what. `more` as `Launch` takes it."""
    launch = Launch(module, name, shape, arguments, **options)
    launch.run()
    counts: Counter[str] = Counter()
    for instruction, count in zip(launch.kernel.code, launch.done, strict=True):
        counts[f"{instruction.parts[0]}.{instruction.type}"] += count
    return counts


class Module:
    """Code of one source, loaded into the memory of a GPU."""

    def __init__(self, text: str, memory: Memory) -> None:
        self.kernels: Mapping[str, Kernel] = parse(text)
        self.memory = memory
