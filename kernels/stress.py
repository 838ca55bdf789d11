"""The generated kernel: what a search for the hardest kernel changes, in some two dozen knobs.

Chains of multiply-adds (`fma`) in five precisions go round while loads from device memory, the L2 cache and shared
memory come. Every number of a chain and every vector that was loaded is compared inside the kernel; what is stored
grows with every repetition, so that an error stays to the check. `fits` says without compiling whether a GPU can run a
setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil, gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .fma import PACKED, PERIOD, factor_literals, gone_round, start_points, stored
from .inputs import key
from .rounding import DTYPES
from .sizing import MOST_MEMORY, bytes_per_s, far_beyond_l2, fitting, flop_per_s, room, too_old
from .work import (
    COUNTERS,
    Argument,
    Array,
    Buffer,
    Facts,
    Key,
    Launch,
    Output,
    Unfit,
    UnitMix,
    Words,
    WordsExpected,
    Work,
)


@dataclass(frozen=True)
class KernelKnob:
    """Something of the generated kernel that can be chosen."""

    name: str
    says: str
    values: tuple[int, ...]
    """Ascending. A 0 is special: nothing of it, or what compiler or driver choose."""
    default: int = 0


_HALVES = (1, 2, 4, 8, 16, 32)

KNOBS = (
    KernelKnob("fp32", "pairs of fp32 chains in a thread", (0, 1, 2, 3, 4, 6, 8), 2),
    KernelKnob("fp64", "pairs of fp64 chains", (0, 1, 2, 3, 4)),
    KernelKnob("fp16", "pairs of packed fp16 chains", (0, 1, 2, 3, 4, 6, 8)),
    KernelKnob("bf16", "pairs of packed bf16 chains", (0, 1, 2, 4, 8)),
    KernelKnob("int32", "pairs of int32 chains", (0, 1, 2, 3, 4, 6, 8)),
    KernelKnob("rounds", "rounds of the chains in a step", (1, 2, 4, 8, 16, 32, 64), 4),
    KernelKnob("unroll", "rounds in a turn of the loop; 0: the compiler decides", (0, 1, 2, 4, 8, 16)),
    KernelKnob("threads", "threads in a block", (32, 64, 128, 256, 512, 1024), 256),
    KernelKnob("blocks", "blocks of a multiprocessor at a time; 0: all that fit", (0, 1, 2, 4, 8, 16, 32)),
    KernelKnob("bound_blocks", "blocks that registers must suffice for; 0: the compiler decides", (0, 1, 2, 4, 8)),
    KernelKnob("sms_pct", "multiprocessors with a block, %; 0: all, with all their blocks", (0, 25, 50, 75, 90)),
    KernelKnob("launches", "launches in a repetition", _HALVES, 1),
    KernelKnob("far", "vectors from device memory in a step", (0, 1, 2, 3, 4, 6, 8), 1),
    KernelKnob("far_mib", "footprint of these, MiB; 0: four times the L2 cache", (0, 64, 256, 1024, 4096, 8192)),
    KernelKnob("near", "vectors from the L2 cache in a step", (0, 1, 2, 3, 4, 6, 8)),
    KernelKnob("near_pct", "footprint of these, % of the cache; 0: a third", (0, 5, 10, 20, 50, 75, 100)),
    KernelKnob("shared", "vectors from shared memory in a step", (0, 1, 2, 4, 8)),
    KernelKnob("shared_kib", "shared memory of a block, KiB; 0: as little as needed", (0, 4, 8, 16, 32, 64, 128)),
    KernelKnob("bank", "vectors of shared memory between neighbouring threads", _HALVES, 1),
    KernelKnob("stores", "vectors read, changed and stored in a step", (0, 1, 2, 4)),
    KernelKnob("width", "words in a vector", (1, 2, 4), 4),
    KernelKnob("stride", "vectors of memory between neighbouring threads", _HALVES, 1),
    KernelKnob("cache", "hint of loads from device memory: 0: the compiler's, 1 ca, 2 cg, 3 cs", (0, 1, 2, 3)),
    KernelKnob("entropy", "bits of 32 that differ in what is loaded, lanes whose chains do", (4, 8, 16, 24, 32), 32),
    KernelKnob("sleep_ns", "sleep in a step, ns", (0, 100, 300, 1000, 3000)),
)
DEFAULTS = {knob.name: knob.default for knob in KNOBS}

_CHAINS = {"fp32": 0, "far": 0, "rounds": 64}
LIKE_CATALOGUE: tuple[dict[str, int], ...] = (
    _CHAINS | {"int32": 8},
    _CHAINS | {"fp32": 8},
    _CHAINS | {"fp64": 4},
    _CHAINS | {"fp16": 8},
    {"fp32": 0, "far": 8},
    {"fp32": 0, "far": 0, "near": 8},
    {"fp32": 0, "far": 1, "threads": 32, "blocks": 1, "sleep_ns": 3000},
)
"""Knobs that ask a GPU for what kernels of the catalogue ask, one unit at a time, and for hardly anything: what a
search tries after the default."""

PRECISIONS = ("fp64", "fp32", "fp16", "bf16", "int32")
"""In the order in which their points lie in memory."""
SINCE = {"bf16": (8, 0)}
"""Compute capability from which a precision has packed multiply-adds."""
THREADS_OF_SM = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""Where not 2048. CUDA C++ Programming Guide, technical specifications by capability."""
BLOCKS_OF_SM = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
"""Where not 32. The same table."""
REGISTERS, MOST_REGISTERS, RESERVED_SHARED = 65536, 255, 1024
"""Of a multiprocessor; of a thread; bytes of shared memory that each block takes beside its own."""

SECONDS, ROUNDS, STEPS, TURNS = 6e-3, 1024, 256, 8
"""About how long a repetition takes; rounds and steps of a block at most; turns before loads begin where they began."""
FMA_CLOCKS, LATENCY_NS, SECTOR = 4.5, 600.0, 32
"""From a multiply-add to one that needs it (4 to 5 clocks, assumed); a load from memory, with others; bytes that a load
from the L2 cache moves at least."""
FACTOR = 3
"""What stores add of another stream of words."""
MOST_WORDS = 1 << 30
"""Of a buffer: their places fit 32 bits."""


Knobs = Mapping[str, float]
"""Values by name; one that is absent has its default."""


def knobs_of(facts: Facts) -> tuple[KernelKnob, ...]:
    """The knobs that a device has a choice of: those of precisions that it lacks stay at nothing."""
    return tuple(knob for knob in KNOBS if facts.capability >= SINCE.get(knob.name, (0, 0)))


def settled(knobs: Knobs) -> dict[str, int]:
    """A value for each knob of `KNOBS`. InputError for a knob that there is not, or a value that it cannot have."""
    by_name = {knob.name: knob for knob in KNOBS}
    for name, value in knobs.items():
        if name not in by_name:
            raise InputError(f"the kernel stress has no knob {name!r}; there are {', '.join(by_name)}")
        if value not in by_name[name].values:
            raise InputError(f"the knob {name} of stress is one of {by_name[name].values}, not {value}")
    return DEFAULTS | {name: int(value) for name, value in knobs.items()}


def fits(facts: Facts, knobs: Knobs) -> Unfit | None:
    """Why a device cannot run a setting; None where it can. Nothing is compiled. InputError as of `settled`."""
    k = settled(knobs)
    for precision in PRECISIONS:
        if k[precision] and (unfit := too_old(facts, f"{precision} multiply-adds", SINCE.get(precision, (0, 0)))):
            return unfit
    lay = _Layout(facts, k)
    if not (lay.pairs or lay.loads):
        return Unfit("no chains and no loads: there is nothing to do")
    if lay.registers > lay.most_registers:
        most = f"where {lay.most_registers} are left for so many threads"
        return Unfit(f"about {lay.registers} registers a thread, {most}")
    if lay.slab_bytes > facts.shared_bytes:
        most = f"which may have {facts.shared_bytes >> 10} KiB"
        return Unfit(f"{lay.slab_bytes >> 10} KiB of shared memory for a block, {most}")
    if lay.resident < max(k["blocks"], 1):
        return Unfit(f"{max(k['blocks'], 1)} blocks of {k['threads']} threads at a time: {lay.resident} fit")
    if k["near"] and max(lay.near_bytes, lay.window_bytes) > facts.l2_bytes:
        return Unfit(f"a load of every thread is {lay.window_bytes >> 10} KiB, more than the L2 cache has")
    if k["far"] and lay.far_bytes > min(MOST_MEMORY * facts.memory_bytes, 4 * MOST_WORDS):
        return Unfit(f"{lay.far_bytes >> 20} MiB to load from: the GPU has {facts.memory_bytes >> 20} MiB")
    return None


class _Layout:
    """How the settled knobs `k` lie on a device: what a thread, a step and a wave (blocks that run at a time) have."""

    def __init__(self, facts: Facts, k: Mapping[str, int]) -> None:
        self.pairs = sum(k[precision] for precision in PRECISIONS)
        self.global_loads = k["far"] + k["near"]
        self.loads = self.global_loads + k["shared"]
        self.vector_bytes = 4 * k["width"]
        self.operations = {p: 2 * k["rounds"] * 2 * k[p] * PACKED.get(p, 1) for p in PRECISIONS if k[p]}
        """Of a thread in a step."""
        self.step_clocks = 2 * FMA_CLOCKS * k["rounds"] * bool(self.pairs)
        """Of two multiply-adds in each round, of which one needs the other."""
        # About, at least: a thread's numbers, a quarter of the words on their way (the compiler waits for the others),
        # loops and addresses. Of 120 random settings, compiled for sm_80 and sm_90, one spilled 8 bytes.
        self.registers = 34 + 2 * self.pairs + 2 * k["fp64"] + (self.loads + k["stores"]) * k["width"] // 4
        blocks = max(k["blocks"], k["bound_blocks"], 1)
        self.most_registers = min(MOST_REGISTERS, REGISTERS // (blocks * k["threads"]) // 8 * 8)
        """Of a thread, such that as many blocks as are asked for run at a time."""
        self.slab_bytes = (k["shared_kib"] or 4 * bool(k["shared"])) << 10
        reserved = RESERVED_SHARED if facts.capability >= (8, 0) else 0
        most = [
            THREADS_OF_SM.get(facts.capability, 2048) // k["threads"],
            BLOCKS_OF_SM.get(facts.capability, 32),
            REGISTERS // (ceil(self.registers / 8) * 8 * k["threads"]),
        ]
        most += [(facts.shared_bytes + reserved) // (self.slab_bytes + reserved)] if self.slab_bytes else []
        self.resident = min([*most, k["blocks"]] if k["blocks"] else most)
        """Blocks of a multiprocessor at a time: as many as are asked for, or as it has room for."""
        self.sms = max(1, round(k["sms_pct"] / 100 * facts.sms)) if k["sms_pct"] else facts.sms
        """That have a block."""
        self.together = self.sms * (1 if k["sms_pct"] else k["blocks"] or max(self.resident, 1))
        """Blocks of a wave."""
        self.window_bytes = self.together * k["threads"] * self.vector_bytes
        """One vector of each thread of a wave."""
        self.far_bytes = max(k["far_mib"] << 20 or min(far_beyond_l2(facts), room(facts) // 2), self.window_bytes)
        self.near_bytes = int(facts.l2_bytes * (k["near_pct"] / 100 or 1 / 3))

    def step_s(self, facts: Facts, k: Mapping[str, int]) -> float:
        """About how long a step of a wave takes: the longest of what its units take, and of what it waits for."""
        threads = self.together * k["threads"]
        seconds = [threads * count / flop_per_s(facts, precision) for precision, count in self.operations.items()]
        seconds.append(self.window_bytes * (k["far"] + 2 * k["stores"]) / bytes_per_s(facts))
        clocks_s = self.step_clocks * 1e-6 / (facts.max_clock_mhz or 1500.0)
        waits_ns = LATENCY_NS * bool(self.global_loads + k["stores"]) + k["sleep_ns"]
        return max(*seconds, clocks_s + 1e-9 * waits_ns)


@dataclass(frozen=True)
class _Grid:
    """How the blocks of a launch go through their loads."""

    steps: int
    """Of a block."""
    waves: int
    """Of blocks, one after another."""
    far_windows: int
    """Loads of a wave after which those from memory begin anew."""
    near_windows: int
    """The same of loads from the L2 cache."""
    places: int
    """Vectors that a thread stores to in turn: as many as there is room for, each as often; 0 where there is none."""


def build(
    facts: Facts, *, steps: int | None = None, waves: int | None = None, footprint: int | None = None, **knobs: float
) -> Work | Unfit:
    """FLOP: of the chains in floating point; operations: of those in int32. Bytes: of the loads from device memory and
    of what is changed there; of the loads from the L2 cache where there are no others. (Operations are loads from
    shared memory where there are no chains in int32.)

    `steps` of a block, and `waves` of blocks in a launch: by default such that a repetition takes about 6 ms.
    `footprint` (bytes): of the loads from device memory, where not what the knob says.
    """
    if unfit := fits(facts, knobs):
        return unfit
    k = settled(knobs)
    lay = _Layout(facts, k)
    steps = steps or min(STEPS, max(1, ROUNDS // k["rounds"]))
    waves = waves or max(1, round(SECONDS / (steps * lay.step_s(facts, k)) / k["launches"]))
    most_places = min(room(facts) // 2, 4 * MOST_WORDS) // (waves * lay.window_bytes)
    turns_of_places = (k["stores"] * n for n in range(1, steps + 1) if steps % n == 0)
    grid = _Grid(
        steps,
        waves,
        far_windows=max(1, (footprint or lay.far_bytes) // lay.window_bytes) if k["far"] else 1,
        near_windows=max(1, lay.near_bytes // lay.window_bytes) if k["near"] else 1,
        places=max((places for places in turns_of_places if places <= most_places), default=0),
    )
    threads = lay.together * waves * k["threads"]
    if k["stores"] and not grid.places:
        return Unfit(f"{threads:,} threads cannot have a place each to store to")
    numbers = range(TURNS * k["launches"] if lay.global_loads else k["launches"])
    launches = [_launch(k, lay, grid, number) for number in numbers]
    windows = {"far": grid.far_windows * bool(k["far"]), "near": grid.near_windows * bool(k["near"])}
    words = {name: count * lay.window_bytes // 4 for name, count in windows.items() if count}
    buffers = [
        Buffer("points", "uint32", *_points(k, 0)),
        Buffer("expected", "uint32", *_points(k, steps * k["rounds"])),
        *(Buffer(name, "uint32", count) for name, count in words.items()),
        COUNTERS,
    ]
    outputs: tuple[Output, ...] = ()
    if k["stores"]:
        buffers.append(Buffer("kept", "uint32", threads * k["width"] * grid.places, Words()))
        added = FACTOR * k["launches"] * steps * k["stores"] // grid.places
        outputs = (Output("kept", partial(_expect_kept, added)),)
    thread_steps = threads * steps * k["launches"]
    operations = {precision: thread_steps * count for precision, count in lay.operations.items()}
    mix = _mix(facts, k, lay, grid)
    moved = round(mix.dram_bytes)
    cached = thread_steps * lay.vector_bytes * (k["far"] + k["near"])
    fill_grid, fill_block = (8 * facts.sms, 1, 1), (256, 1, 1)
    filled = ((name, np.uint64(count), Key("words")) for name, count in words.items())
    work = Work(
        kernel="stress",
        precision=next((p for p in ("fp32", *PRECISIONS) if k[p]), "int32"),
        buffers=tuple(buffers),
        turns=tuple(tuple(launches[first : first + k["launches"]]) for first in range(0, len(launches), k["launches"])),
        flop=sum(count for precision, count in operations.items() if precision != "int32"),
        bytes=moved or cached,
        path="dram" if moved else "l2" if cached else "none",
        outputs=outputs,
        parameters=k | {"steps": steps, "blocks_in_all": lay.together * waves * k["launches"]},
        operations=operations.get("int32", 0) or thread_steps * k["shared"],
        activity=(1 + k["entropy"] / 32) / 2 * lay.sms / facts.sms,
        mix=mix,
        first=tuple(
            Launch("stress.cu", "fill_words", fill_grid, fill_block, args, launches[0].defines) for args in filled
        ),
        compared=k["launches"] * threads * (2 * lay.pairs + steps * lay.loads),
    )
    return fitting(facts, work)


def _mix(facts: Facts, k: Mapping[str, int], lay: _Layout, grid: _Grid) -> UnitMix:
    steps = grid.steps * grid.waves * k["launches"]
    threads = lay.together * k["threads"]
    loads_bytes = steps * lay.window_bytes  # of one load in each step
    touched = min(grid.far_windows, TURNS * steps * k["far"]) * lay.window_bytes  # until the first are loaded again
    missed = max(0.0, 1 - facts.l2_bytes / max(touched, 1))  # by the cache, of loads from memory
    stored = 2 * loads_bytes * k["stores"]
    sectors = min(k["stride"], max(1, SECTOR // lay.vector_bytes))
    chained = 2 * k["rounds"] * lay.pairs
    instructions = 6 + chained + lay.loads * (6 + 2 * k["width"]) + k["stores"] * (4 + 12 * k["width"])
    return UnitMix(
        operations={precision: steps * threads * count for precision, count in lay.operations.items()},
        dram_bytes=loads_bytes * k["far"] * missed + stored,
        l2_bytes=sectors * loads_bytes * lay.global_loads + stored,
        shared_bytes=loads_bytes * k["shared"] * gcd(k["bank"], 32 // k["width"]),
        instructions=steps * threads * instructions // 32,
        sms=lay.sms,
        steps=steps,
        step_clocks=lay.step_clocks,
        footprint=touched if k["far"] else lay.near_bytes if k["near"] or k["stores"] else 0,
        sleep_ns=float(k["sleep_ns"]),
    )


def _launch(k: Mapping[str, int], lay: _Layout, grid: _Grid, number: int) -> Launch:
    """The launch with this number from 0 on, whose loads begin behind those of the launches before it."""
    names = (*PRECISIONS, "rounds", "unroll", "far", "near", "shared", "stores", "width", "stride", "bank")
    defines = [f"{name.upper()}={k[name]}" for name in names]
    for precision in PRECISIONS:
        ahead, back = factor_literals(precision)
        defines += [f"AHEAD_{precision.upper()}={ahead}", f"BACK_{precision.upper()}={back}"]
    hint = ("", ".ca", ".cg", ".cs")[k["cache"]]
    mask = (1 << 32) - (1 << (32 - k["entropy"]))
    bound = max(k["blocks"], k["bound_blocks"])
    bounds = f"{k['threads']},{bound}" if bound else str(k["threads"])
    defines += [f'CACHE="{hint}"', f"MASK=0x{mask:08x}u", f"BOUNDS={bounds}", f"SLEEP={k['sleep_ns']}"]
    defines.append(f"SLAB={max(1, lay.slab_bytes // lay.vector_bytes)}")
    before = number * grid.waves * grid.steps
    sizes = [grid.steps, lay.together]
    for name, windows in (("far", grid.far_windows), ("near", grid.near_windows)):
        sizes += [windows, before * k[name] % windows]
    buffers = [name if k[knob] else "points" for name, knob in (("far", "far"), ("near", "near"), ("kept", "stores"))]
    words = (np.uint32(size) for size in (*sizes, max(grid.places, 1)))
    args: tuple[Argument, ...] = ("points", "expected", *buffers, "faults")
    args += (*words, Key("words"), Key("plus"), np.uint32(FACTOR))
    blocks, threads = (lay.together * grid.waves, 1, 1), (k["threads"], 1, 1)
    return Launch("stress.cu", "stress", blocks, threads, args, tuple(defines), shared=lay.slab_bytes)


def _points(k: Mapping[str, int], rounds: int) -> tuple[int, Array]:
    """The chains of all precisions after some rounds, one behind the other: how many words, and what they are."""
    pairs = tuple((precision, k[precision]) for precision in PRECISIONS if k[precision])
    count = sum(2 * n * PERIOD * PACKED.get(p, 1) * np.dtype(DTYPES[p]).itemsize // 4 for p, n in pairs)
    says = f"chains after {rounds} rounds" if rounds else f"chains, {k['entropy']} lanes of 32 not zero"
    return max(count, 1), Array(says, partial(_chains, pairs, k["entropy"], rounds))


@lru_cache(maxsize=16)
def _chains(pairs: tuple[tuple[str, int], ...], entropy: int, rounds: int, seed: int) -> NDArray[Any]:
    words = [np.zeros(0 if pairs else 1, np.uint32)]
    for precision, count in pairs:
        points = start_points(precision, count, seed).reshape(-1, PERIOD, PACKED.get(precision, 1))
        points[:, np.arange(PERIOD) % 32 >= entropy] = 0
        words.append(stored(gone_round(points.reshape(-1), precision, rounds), precision).view(np.uint32))
    return np.concatenate(words)


def _expect_kept(factor: int, seed: int, repetitions: int) -> WordsExpected:
    return WordsExpected(key(seed, "kept"), plus=key(seed, "plus"), plus_factor=factor * repetitions)
