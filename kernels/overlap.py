"""Copies beside kernels, as applications have them: three shapes of traffic between a host and its GPU.

`traces` of which rows, partitions or activations move when are exact, so that every copy and every sum is known.

* `overlap-embedding`: an embedding's rows are fetched ahead of the batches that use them, and kept while a batch in
  the look-ahead needs them (Bagpipe: Agarwal, Yan, Zhang and Venkataraman, SOSP 2023).
* `overlap-partitions`: a graph's partitions go through a buffer in BETA order, and each pair of partitions is joined
  while both are there (Marius++: Waleffe, Mohoney, Rekatsinas and Venkataraman, EuroSys 2023).
* `overlap-activations`: activations are encoded, leave for the host, come back and are decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of
from .sizing import bytes_per_s, fitting
from .work import COUNTERS, Array, Buffer, Copy, Facts, Key, Launch, Unfit, Words, Work

Ints = NDArray[np.int64]

ROWS, BATCHES, DRAWS, SKEW = 200_000, 400, 2048, 1.1
"""Of the embedding's trace: rows of the table, batches, draws of a batch, and the exponent of Zipf's law."""


@lru_cache(maxsize=1)
def embedding_trace() -> Ints:
    """The rows that each batch draws, of shape (`BATCHES`, `DRAWS`): row k of a table with probability k^-1.1."""
    random = np.random.default_rng(0)
    shares = np.cumsum(np.arange(1, ROWS + 1) ** -SKEW)
    shares /= shares[-1]
    return np.stack([np.searchsorted(shares, random.random(DRAWS)) for _ in range(BATCHES)])


@dataclass(frozen=True)
class Fetches:
    """What a look-ahead of some batches fetches of a trace, one fetch after another in the order of the batches."""

    rows: Ints
    """The row that each fetch brings. Shape (fetches,)."""
    ends: Ints
    """How many fetches there are up to and with each batch. Shape (batches,)."""
    last: Ints
    """The last batch that uses what a fetch brought. Shape (fetches,)."""
    fetch_of: Ints
    """The fetch that brought the row of each draw. Shape (batches, draws)."""


def fetched_ahead(trace: Ints, lookahead: int) -> Fetches:
    """What must be fetched if a row stays after batch i while one of the batches i+1 .. i+`lookahead` uses it.

    So a use of a row costs a fetch where the use before it lies more than `lookahead` batches back, or there is none.
    """
    used = np.full(int(trace.max()) + 1, -lookahead - 1, np.int64)  # the last batch that used a row
    current = np.zeros_like(used)  # the fetch that brought it
    rows, ends, last, fetch_of = [], [], np.empty(0, np.int64), []
    count = 0
    for batch, draws in enumerate(trace):
        distinct = np.unique(draws)
        missing = distinct[batch - used[distinct] > lookahead]
        current[missing] = count + np.arange(len(missing))
        count += len(missing)
        used[distinct] = batch
        last = np.concatenate([last, np.empty(len(missing), np.int64)])
        last[current[distinct]] = batch
        rows.append(missing)
        ends.append(count)
        fetch_of.append(current[draws])
    return Fetches(np.concatenate(rows), np.array(ends), last, np.stack(fetch_of))


def beta_order(partitions: int, capacity: int) -> list[tuple[int, ...]]:
    """The contents of a buffer of `capacity` partitions, state after state, until every pair was in it together.

    All but the last slot stay while every other partition passes through the last one; then other partitions replace
    those that stayed, one after another, and these are done with.
    """
    held, outside = list(range(capacity)), list(range(capacity, partitions))
    states = [tuple(held)]
    while outside:
        for place, partition in enumerate(outside):
            held[-1], outside[place] = partition, held[-1]
            states.append(tuple(held))
        replaced = min(capacity - 1, len(outside))
        for slot in range(replaced):
            held[slot] = outside[slot]
            states.append(tuple(held))
        outside = outside[replaced:]
    return states


def pairs_by_state(states: list[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    """Every ordered pair of partitions once, in a state that holds both: of these the one with the fewest so far."""
    pairs: list[list[tuple[int, int]]] = [[] for _ in states]
    partitions = max(max(state) for state in states) + 1
    holding = np.array([[partition in state for partition in range(partitions)] for state in states])
    for i in range(partitions):
        for j in range(partitions):
            choices = np.flatnonzero(holding[:, i] & holding[:, j])
            pairs[min(choices, key=lambda state: len(pairs[state]))].append((i, j))
    return pairs


# -- works ------------------------------------------------------------------------------------------------------------

SOURCE = "overlap.cu"
BLOCK, EACH = 256, 8
"""Threads of a block, and rows of a sum, as in overlap.cu."""


def _link_bytes_per_s(facts: Facts) -> float:
    """About what the link from the host carries."""
    return 50e9 if facts.capability >= (9, 0) else 25e9 if facts.capability >= (8, 0) else 12e9


def _blocks(facts: Facts, blocks: int | None, least: int, *, copied: int, read: int) -> int:
    """Blocks of a launch: those asked for, by default about as many as take as long as the copies; at least `least`.

    `copied`: bytes over the link; `read`: bytes that a block reads of the device's memory.
    """
    balanced = copied / _link_bytes_per_s(facts) * bytes_per_s(facts) / read
    return max(least, round(balanced) if blocks is None else blocks)


def blocks_of(work: Work) -> int:
    """How many blocks the kernels of a work have whose time follows from them."""
    launch = work.turns[0][-1]
    assert isinstance(launch, Launch)
    return launch.grid[0]


def _beside(facts: Facts, kernel: str, precision: str, **parts: Any) -> Work | Unfit:
    """A work whose turns have copies beside them, and compare all that they compute."""
    return fitting(facts, Work(kernel, precision, path="pcie", activity=0.2, **parts))


def _places(name: str, says: str, values: Ints) -> Buffer:
    content = Array(says, lambda seed: values.astype(np.uint32).reshape(-1))  # noqa: ARG005
    return Buffer(name, "uint32", values.size, content)


def _pool(rows: str, table: str, first: int, sums: int, *, blocks: int, width: int) -> Launch:
    args = (rows, "place", "name", Key(table), "faults", np.uint32(first), np.uint32(sums))
    return Launch(SOURCE, "pool", (blocks, 1, 1), (BLOCK, 1, 1), args, (f"WIDE={width // 4}",))


def build_embedding(
    facts: Facts,
    *,
    lookahead: int = 10,
    width: int = 256,
    turns: int = 8,
    batches: int = BATCHES,
    blocks: int | None = None,
) -> Work | Unfit:
    """The embedding's trace, in `turns` parts with as many fetches each. Operations: rows summed.

    In a turn the rows fetched in the one before are kept and the sums of its batches made, while the rows of the next
    turn come. A fetch brings other words than the one before of the same row, as if the row had been trained meanwhile:
    what stands in the cache from an earlier fetch is wrong. `width`: words of a row (four tables of 64). `blocks`: of
    the sums, by default such that they take about as long as the copies.
    """
    if turns < 4 or turns % 2 or width % 32 or BLOCK % (width // 4) or not 1 <= batches <= BATCHES:
        return Unfit(
            "an embedding needs an even number of turns from 4 on, rows of 32 to 1024 words, and 1 to 400 batches"
        )
    schedule = _embedding_schedule(lookahead, turns, batches)
    chunk, row_bytes, per_block = schedule.chunk, 4 * width, BLOCK // (width // 4)
    sums = np.diff(schedule.first_batch) * (DRAWS // EACH)
    if not sums.all():
        return Unfit(f"{batches} batches are too few for {turns} turns")
    copied = chunk * row_bytes
    blocks = _blocks(facts, blocks, -(-int(sums.max()) // per_block), copied=copied, read=per_block * EACH * row_bytes)
    steps, beside = [], []
    for turn in range(turns):
        staged, following = turn % 2 * chunk, (turn + 1) % turns
        numbers = (np.uint32(staged), np.uint32(turn * chunk), np.uint32(chunk))
        args = ("stage", "slot", "cache", Key("fetched"), "faults", *numbers)
        grid = (-(-chunk // per_block), 1, 1)
        keep = Launch(SOURCE, "keep", grid, (BLOCK, 1, 1), args, (f"WIDE={width // 4}",))
        first = int(schedule.first_batch[turn]) * (DRAWS // EACH)
        steps.append((keep, _pool("cache", "fetched", first, int(sums[turn]), blocks=blocks, width=width)))
        beside.append((Copy("fetched", "stage", copied, following * copied, (turn + 1) % 2 * copied),))
    return _beside(
        facts,
        "overlap-embedding",
        "int32",
        buffers=(
            Buffer("fetched", "uint32", turns * chunk * width, Words(), "host"),
            Buffer("stage", "uint32", 2 * chunk * width),
            Buffer("cache", "uint32", schedule.slots * width),
            _places("slot", "slots of the cache", schedule.slot),
            _places("place", "slots of the rows drawn by Zipf's law", schedule.slot[schedule.fetch_of]),
            _places("name", "their fetches", schedule.fetch_of),
            COUNTERS,
        ),
        first=(Copy("fetched", "stage", copied),),
        turns=tuple(steps),
        beside=tuple(beside),
        bytes=copied,
        turn_bytes=blocks * per_block * EACH * row_bytes + 2 * copied,
        parameters={"lookahead": lookahead, "width": width, "turns": turns, "batches": batches},
        operations=blocks * per_block * EACH,
        compared=chunk * width + blocks * per_block * width,
    )


@dataclass(frozen=True)
class _EmbeddingSchedule:
    """Which fetch goes to which slot of the cache, and which batches a turn has."""

    chunk: int
    """Fetches of a turn."""
    slots: int
    first_batch: Ints
    """Of each turn, and the number of batches. Shape (turns + 1,)."""
    slot: Ints
    """Of each fetch. Shape (turns * chunk,)."""
    fetch_of: Ints
    """Shape (batches, draws)."""


@lru_cache(maxsize=4)
def _embedding_schedule(lookahead: int, turns: int, batches: int) -> _EmbeddingSchedule:
    """A batch belongs to the turn that brings its last row; a slot is free after the turn that last uses its row."""
    fetches = fetched_ahead(embedding_trace()[:batches], lookahead)
    chunk = -(-len(fetches.rows) // turns)
    turn_of_batch = (fetches.ends - 1) // chunk
    last_turn = np.repeat(np.arange(turns), chunk)  # of what only fills up the last turn: its own
    last_turn[: len(fetches.rows)] = turn_of_batch[fetches.last]
    slot, free, slots = np.empty(turns * chunk, np.int64), np.empty(0, np.int64), 0
    for turn in range(turns):
        lacking = max(0, chunk - len(free))
        free = np.concatenate([free, slots + np.arange(lacking)])
        slots += lacking
        slot[turn * chunk : (turn + 1) * chunk], free = free[:chunk], free[chunk:]
        free = np.concatenate([free, slot[: (turn + 1) * chunk][last_turn[: (turn + 1) * chunk] == turn]])
    first_batch = np.searchsorted(turn_of_batch, np.arange(turns + 1))
    return _EmbeddingSchedule(chunk, slots, first_batch, slot, fetches.fetch_of)


SPARSE = 32
"""Of so many vertices of a partition one has edges into each partition."""


def build_partitions(
    facts: Facts,
    *,
    partitions: int = 16,
    capacity: int = 4,
    vertices: int = 16384,
    width: int = 256,
    blocks: int | None = None,
) -> Work | Unfit:
    """A graph's partitions through a buffer of `capacity` in BETA order, forth and back. Operations: rows summed.

    A turn is a state of the buffer: it looks at the partition that came and makes the products of edge buckets, sums
    of `EACH` rows of one partition for every 32nd vertex of another, while the partition of the next state comes to a
    spare slot. On the way back a vertex has the features of the next one, as if it had been trained meanwhile: a
    partition that did not come is wrong, wherever it stood before. `vertices`: of a partition; `width`: features of a
    vertex, in words. `blocks`: as in `build_embedding`.
    """
    if not 2 <= capacity < partitions or width % 32 or BLOCK % (width // 4) or vertices % SPARSE:
        return Unfit(f"a buffer holds two partitions at least, not all, of {SPARSE} n vertices of 32 to 1024 words")
    sums = vertices // SPARSE
    schedule = _partitions_schedule(partitions, capacity, vertices)
    per_block, copied = BLOCK // (width // 4), 4 * vertices * width
    bounds = np.append(0, np.cumsum(schedule.pairs)) * sums
    least = -(-int(np.diff(bounds).max()) // per_block)
    blocks = _blocks(facts, blocks, least, copied=copied, read=per_block * EACH * 4 * width)
    grid, defines = (-(-vertices // per_block), 1, 1), (f"WIDE={width // 4}",)
    steps, beside = [], []
    for turn, (coming, came) in enumerate(zip(schedule.arrivals, np.roll(schedule.arrivals, 1, axis=0), strict=True)):
        rows = (np.uint32(came[1] * vertices), np.uint32(came[0]), np.uint32(vertices))
        meet = Launch(SOURCE, "meet", grid, (BLOCK, 1, 1), ("held", Key("features"), "faults", *rows), defines)
        first, end = (int(bound) for bound in bounds[turn : turn + 2])
        steps.append((meet, _pool("held", "features", first, end - first, blocks=blocks, width=width)))
        beside.append((_partition(coming, vertices, width),))
    return _beside(
        facts,
        "overlap-partitions",
        "int32",
        buffers=(
            Buffer("features", "uint32", (partitions * vertices + 1) * width, Words(), "host"),
            Buffer("held", "uint32", (capacity + 1) * vertices * width),
            _places("place", "rows of the buffer, at random", schedule.place),
            _places("name", "their vertices", schedule.name),
            COUNTERS,
        ),
        first=tuple(_partition(arrival, vertices, width) for arrival in schedule.first),
        turns=tuple(steps),
        beside=tuple(beside),
        bytes=copied,
        turn_bytes=blocks * per_block * EACH * 4 * width + copied,
        parameters={"partitions": partitions, "capacity": capacity, "vertices": vertices, "width": width},
        operations=blocks * per_block * EACH,
        compared=(vertices + blocks * per_block) * width,
    )


def _partition(arrival: Ints, vertices: int, width: int) -> Copy:
    row, slot = (int(number) for number in arrival)
    return Copy("features", "held", 4 * vertices * width, 4 * row * width, 4 * slot * vertices * width)


@dataclass(frozen=True)
class _PartitionsSchedule:
    """What comes in each turn, and the rows that are summed there. A turn is a state of the buffer, forth and back."""

    first: Ints
    """The partitions of the buffer in turn 0: the first row of the table that each has, and its slot. (capacity, 2)."""
    arrivals: Ints
    """The same of the partition that comes beside each turn. Shape (turns, 2)."""
    pairs: Ints
    """How many pairs of partitions each turn joins. Shape (turns,)."""
    place: Ints
    """Row of the buffer of each edge, turn by turn. Shape (sum of pairs, sums, `EACH`)."""
    name: Ints
    """The same rows by their place in the table."""


@lru_cache(maxsize=4)
def _partitions_schedule(partitions: int, capacity: int, vertices: int) -> _PartitionsSchedule:
    """What comes goes to the spare slot, and what leaves makes its slot the spare one: the way back is the same."""
    states = beta_order(partitions, capacity)
    slots = [{partition: slot for slot, partition in enumerate(states[0])}]
    for state in states[1:]:
        (spare,) = set(range(capacity + 1)) - set(slots[-1].values())
        slots.append({partition: slots[-1].get(partition, spare) for partition in state})
    order = [*range(len(states)), *range(len(states) - 2, 0, -1)]
    row = {partition: partition * vertices for partition in range(partitions)}  # of the table, where each begins
    for _ in range(2):  # what stands in the buffer at first is what a way back leaves
        rows, arrivals = [], []
        for turn, state in enumerate(order):
            rows.append(dict(row))
            following = slots[order[(turn + 1) % len(order)]]
            (coming,) = following.keys() - slots[state].keys()
            row[coming] = coming * vertices + (turn >= len(states) - 1)
            arrivals.append((row[coming], following[coming]))
    pairs = pairs_by_state(states)
    edges = stream_of(0, "edges").integers(0, vertices, (len(states), partitions, vertices // SPARSE, EACH))
    place = [slots[state][j] * vertices + edges[state, i] for state in order for i, j in pairs[state]]
    name = [at[j] + edges[state, i] for at, state in zip(rows, order, strict=True) for i, j in pairs[state]]
    first = [(rows[0][partition], slot) for partition, slot in slots[0].items()]
    counts = np.array([len(pairs[state]) for state in order])
    return _PartitionsSchedule(np.array(first), np.array(arrivals), counts, np.stack(place), np.stack(name))


TOKENS, KEPT = 32, 4
"""Activations of a channel that are encoded together, and how many of them top-k keeps, as in overlap.cu."""
LAYERS = 4
CHANNELS = 4096


def build_activations(
    facts: Facts, *, bits: int = 8, tensors: int | None = None, channels: int = CHANNELS, blocks: int | None = None
) -> Work | Unfit:
    """Activations are encoded, copied to the host and back, and decoded. Operations: activations encoded and decoded.

    A turn encodes those of one of four layers and decodes those that were encoded two turns before, while those of the
    turn before go out and come back. `bits`: of a code, 8, 4 or 2, with one scale for `TOKENS` activations of a
    channel; 0 for the `KEPT` largest of them. `tensors`: of `TOKENS` times `channels` activations in a layer, by
    default such that 12 MB are copied each way. `blocks`: as in `build_embedding`.
    """
    if bits not in (0, 2, 4, 8) or channels < BLOCK or channels % BLOCK:
        return Unfit(f"codes have 8, 4, 2 or 0 bits, and channels are a multiple of {BLOCK}")
    words = bits + 1 if bits else KEPT + 1  # of a channel
    if tensors is None:
        tensors = max(1, round(12e6 / (4 * channels * words)))
    layer_size, coded = tensors * TOKENS * channels, tensors * words * channels
    copied, once = 4 * coded, tensors * channels // BLOCK
    read = BLOCK * 4 * (TOKENS + 2 * words)
    blocks = _blocks(facts, blocks, once, copied=2 * copied, read=read)
    defines, sizes = (f"BITS={bits}",), (np.uint32(channels), np.uint32(tensors))

    def encode(layer: int, half: int) -> Launch:
        args = ("activations", "code", np.uint64(layer * layer_size), np.uint64(half * coded), *sizes)
        return Launch(SOURCE, "encode", (blocks, 1, 1), (BLOCK, 1, 1), args, defines)

    def decode(layer: int, half: int) -> Launch:
        args = ("back", Key("activations"), "faults", np.uint64(layer * layer_size), np.uint64(half * coded), *sizes)
        return Launch(SOURCE, "decode", (blocks, 1, 1), (BLOCK, 1, 1), args, defines)

    def copies(half: int) -> tuple[Copy, Copy]:
        at = half * copied
        return Copy("code", "host", copied, at, at), Copy("host", "back", copied, at, at)

    return _beside(
        facts,
        "overlap-activations",
        "fp32",
        buffers=(
            Buffer("activations", "uint32", LAYERS * layer_size, Words()),
            Buffer("code", "uint32", 2 * coded),
            Buffer("host", "uint32", 2 * coded, place="host"),
            Buffer("back", "uint32", 2 * coded),
            COUNTERS,
        ),
        first=(encode(LAYERS - 2, 0), *copies(0), encode(LAYERS - 1, 1)),
        turns=tuple((encode(turn, turn % 2), decode((turn - 2) % LAYERS, turn % 2)) for turn in range(LAYERS)),
        beside=tuple(copies((turn - 1) % 2) for turn in range(LAYERS)),
        bytes=2 * copied,
        turn_bytes=blocks * read,
        parameters={"bits": bits, "tensors": tensors, "channels": channels, "raw_bytes": 2 * 4 * layer_size},
        operations=blocks * BLOCK * TOKENS,
        compared=blocks * BLOCK * (words + TOKENS),
    )
