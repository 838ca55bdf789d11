"""Copies beside kernels: the traces against published counts, the schedules against what no cache would give, the codes
against numpy, and everything that is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.kernels.inputs import filled
from whorl.kernels.overlap import EACH, KEPT, SPARSE, TOKENS, beta_order, embedding_trace, fetched_ahead, pairs_by_state
from whorl.kernels.work import Copy, Launch, Work
from whorl.tests.kernels import compiling
from whorl.tests.kernels.device_memory import Fault
from whorl.tests.kernels.fake_cupy import FakeRuntime
from whorl.tests.kernels.hosting import SMALL, HostDevice, facts_of, work_of
from whorl.tests.kernels.test_arithmetic import SIZES
from whorl.tests.kernels.works import load, memory
from whorl.tests.sizes import sample

on_host = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())

SMALL_WORKS: dict[str, tuple[str, Mapping[str, Any]]] = {
    **{name: (f"overlap-{name}", SIZES[f"overlap-{name}"]) for name in ("embedding", "partitions")},
    **{f"{bits} bits": ("overlap-activations", SIZES["overlap-activations"] | {"bits": bits}) for bits in (8, 4, 2, 0)},
}


def small(name: str) -> Work:
    kernel, parameters = SMALL_WORKS[name]
    return work_of(kernel, **parameters)


# -- traces -----------------------------------------------------------------------------------------------------------


def test_the_trace_of_the_embedding_is_the_published_one() -> None:
    trace = embedding_trace()
    assert sum(len(np.unique(batch)) for batch in trace) == 361_872
    assert len(np.unique(trace)) == 78_896


@pytest.mark.parametrize(
    ("lookahead", "fetched", "most_kept"),
    [(1, 279_533, 234), (10, 182_504, 1_370), (50, 121_067, 5_498), (200, 84_899, 18_486)],
)
def test_a_look_ahead_fetches_as_many_rows_as_published(lookahead: int, fetched: int, most_kept: int) -> None:
    fetches = fetched_ahead(embedding_trace(), lookahead)
    assert len(fetches.rows) == fetched
    first = np.searchsorted(fetches.ends, np.arange(fetched), side="right")
    rows_kept = np.cumsum(np.bincount(first, minlength=401) - np.bincount(fetches.last, minlength=401))
    assert rows_kept.max() == most_kept
    assert (fetches.rows[fetches.fetch_of] == embedding_trace()).all(), "a draw finds its row"


@pytest.mark.parametrize(("partitions", "capacity", "swaps"), [(8, 4, 9), (16, 4, 42), (32, 8, 78), (64, 8, 308)])
def test_the_order_of_partitions_has_the_published_swaps_and_joins_every_pair_once(
    partitions: int, capacity: int, swaps: int
) -> None:
    states = beta_order(partitions, capacity)
    assert len(states) - 1 == swaps
    assert all(len(set(state)) == capacity for state in states)
    assert all(len(set(later) - set(state)) == 1 for state, later in pairwise(states))
    pairs = pairs_by_state(states)
    joined = [pair for state_pairs in pairs for pair in state_pairs]
    assert sorted(joined) == [(i, j) for i in range(partitions) for j in range(partitions)]
    assert all({i, j} <= set(state) for state, here in zip(states, pairs, strict=True) for i, j in here)


# -- schedules --------------------------------------------------------------------------------------------------------


def contents(work: Work, name: str) -> NDArray[Any]:
    """Row numbers of a work, int64."""
    return filled(1, next(buffer for buffer in work.buffers if buffer.name == name)).astype(np.int64)


def pooled(work: Work, turn: int) -> slice:
    """The rows that the sums of a turn take, within `place` and `name`."""
    launch = work.turns[turn][-1]
    assert isinstance(launch, Launch)
    first, sums = (int(argument) for argument in launch.args[-2:] if isinstance(argument, np.uint32))
    assert launch.grid[0] * 256 // (work.parameters["width"] // 4) >= sums, "every sum is made"  # type: ignore[operator]
    return slice(first * EACH, (first + sums) * EACH)


@pytest.mark.parametrize("lookahead", [1, 10, 50, 200])
def test_sums_from_the_cache_are_bit_equal_to_those_without_one(lookahead: int) -> None:
    work = work_of("overlap-embedding", facts_of((9, 0)), lookahead=lookahead)
    fetches = fetched_ahead(embedding_trace(), lookahead)
    table = np.random.default_rng(3).random(int(fetches.rows.max()) + 1, np.float32)
    turns = len(work.turns)
    chunk = work.bytes // 4 // int(work.parameters["width"])
    brought = np.zeros(turns * chunk, np.float32)
    brought[: len(fetches.rows)] = table[fetches.rows]
    slot, place = contents(work, "slot"), contents(work, "place")
    cache = np.full(slot.max() + 1, np.nan, np.float32)
    sums = np.zeros(embedding_trace().size // EACH, np.float32)
    for turn in range(turns):
        (copy,) = work.beside[turn - 1]
        assert isinstance(copy, Copy)
        assert copy.source_at == turn * work.bytes, "the copy before brings the turn's rows"
        cache[slot[turn * chunk :][:chunk]] = brought[turn * chunk :][:chunk]
        rows = pooled(work, turn)
        sums[rows.start // EACH : rows.stop // EACH] = cache[place[rows]].reshape(-1, EACH).sum(axis=1)
    assert len(cache) < 2 * len(fetches.rows) / turns + len(np.unique(fetches.rows)) / 2, (
        "what no batch needs makes room"
    )
    np.testing.assert_array_equal(sums, table[embedding_trace()].reshape(-1, EACH).sum(axis=1))


@pytest.mark.parametrize(("partitions", "capacity"), [(8, 4), (16, 4)])
def test_products_of_partitions_are_those_of_scipy(partitions: int, capacity: int) -> None:
    vertices, sums = 512, 512 // SPARSE
    sizes = {"partitions": partitions, "capacity": capacity, "vertices": vertices, "width": 32}
    work = work_of("overlap-partitions", SMALL, **sizes)
    rows = partitions * vertices
    features = np.random.default_rng(4).random((rows, 3))
    place, name = (contents(work, buffer) for buffer in ("place", "name"))
    states = beta_order(partitions, capacity)
    turns = [*range(len(states)), *range(len(states) - 2, 0, -1)]
    targets, sources = [], []  # sum s of a pair is for every (vertices / sums)-th vertex of the first partition
    products = np.zeros((len(turns), rows, 3))
    held = np.full(((capacity + 1) * vertices, 5), np.nan)

    def arrive(copy: object) -> None:
        """A vertex: its features, its number, and the row of the table that is copied, the next one on the way back."""
        assert isinstance(copy, Copy)
        source, target = (at // (4 * 32) for at in (copy.source_at, copy.target_at))
        vertex = source // vertices * vertices + np.arange(vertices)
        held[target : target + vertices] = np.column_stack([features[vertex], vertex, source + np.arange(vertices)])

    for copy in work.first:
        arrive(copy)
    for turn, state in enumerate(turns):
        met = held[place[pooled(work, turn)]]
        np.testing.assert_array_equal(met[:, 4], name[pooled(work, turn)])
        first = np.array([i for i, _ in pairs_by_state(states)[state]])[:, None] * vertices
        targets.append(np.repeat(first + np.arange(sums) * (vertices // sums), EACH))
        sources.append(met[:, 3].astype(np.int64))
        np.add.at(products[turn], targets[-1], met[:, :3])
        for copy in work.beside[turn]:
            arrive(copy)
    for half in (slice(0, len(states)), slice(len(states) - 1, None)):
        edge = (np.concatenate(targets[half]), np.concatenate(sources[half]))
        adjacency = sparse.coo_array((np.ones(len(edge[0])), edge), (rows, rows)).tocsr()
        np.testing.assert_allclose(products[half].sum(axis=0), adjacency @ features, rtol=1e-5)
    assert len(edge[0]) == (partitions**2 - len(pairs_by_state(states)[0])) * sums * EACH, "every pair is joined once"


# -- codes ------------------------------------------------------------------------------------------------------------


@on_host
@pytest.mark.long(short=1)
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_codes_are_within_half_a_step_of_the_scale_as_it_is_stored(bits: int) -> None:
    work = small(f"{bits} bits")
    device = HostDevice(work, 5)
    device.run()
    x = device.arrays["activations"].view(np.int32)[: 2 * TOKENS * 256].reshape(2, TOKENS, 256) * np.float32(2**-31)
    stored = device.arrays["code"][: 2 * (bits + 1) * 256].reshape(2, bits + 1, 256)
    scale = np.abs(x).max(axis=1).astype(np.float16)
    np.testing.assert_array_equal(stored[:, bits].astype(np.uint16).view(np.float16), scale)
    levels = 2 ** (bits - 1)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = stored[:, :bits, None, :] >> shifts[:, None] & np.uint32(2**bits - 1)
    codes = (codes.astype(np.int64) ^ levels) - levels
    codes = codes.reshape(2, TOKENS, 256)
    step = scale[:, None].astype(np.float64) / levels
    nearest = np.clip(np.rint(x / step), -levels, levels - 1)
    assert (codes != nearest).mean() < 1e-4, "but where rounding decides between two"
    error = np.abs(codes * step - x)
    assert (error / step)[codes < levels - 1].max() <= 0.5 + 1e-5
    assert (error / step).max() <= 1 + levels * 2**-11, "the highest code is a step too low"


@on_host
def test_the_error_of_the_largest_is_the_energy_of_the_others() -> None:
    device = HostDevice(small("0 bits"), 5)
    device.run()
    words = device.arrays["activations"][: 2 * TOKENS * 256].reshape(2, TOKENS, 256)
    stored = device.arrays["code"][: 2 * (KEPT + 1) * 256].reshape(2, KEPT + 1, 256)
    restored = np.zeros_like(words)
    for place in range(KEPT):
        number = (stored[:, KEPT] >> np.uint32(5 * place) & np.uint32(31)).astype(np.int64)
        np.put_along_axis(restored, number[:, None], stored[:, place, None], axis=1)
    x, y = (array.view(np.int32).astype(np.float64) for array in (words, restored))
    error = ((x - y) ** 2).sum(axis=1)
    tail = np.sort(x**2, axis=1)[:, : TOKENS - KEPT].sum(axis=1)
    np.testing.assert_allclose(error, tail, rtol=1e-12)


# -- checks -----------------------------------------------------------------------------------------------------------


@on_host
@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", SMALL_WORKS)
def test_results_are_right_whichever_of_the_two_streams_is_first(name: str) -> None:
    work = small(name)
    for beside_first in (False, True):
        device = HostDevice(work, 3)
        for _ in range(len(work.turns) + 1):
            device.run(beside_first=beside_first)
        assert device.wrong() == 0


def is_found(device: HostDevice, repetitions: int) -> bool:
    """Whether a mistake is found within so many repetitions, by a comparison or a read of what nobody wrote."""
    for _ in range(repetitions):
        try:
            device.run()
        except Fault:
            return True
        if device.wrong():
            return True
    return False


@on_host
@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", SMALL_WORKS)
def test_every_step_that_is_left_out_is_found(name: str) -> None:
    work = small(name)
    all_steps = {"turns": work.turns, "beside": work.beside}
    places = [
        (kind, turn, i) for kind, part in all_steps.items() for turn, row in enumerate(part) for i, _ in enumerate(row)
    ]
    for kind, turn, place in sample(places, short=3):
        steps: list[Any] = list(all_steps[kind])
        steps[turn] = (*steps[turn][:place], *steps[turn][place + 1 :])
        device = HostDevice(replace(work, **{kind: tuple(steps)}), 3)  # type: ignore[arg-type]
        assert is_found(device, 2 * len(work.turns)), (kind, turn, place)


# -- two streams ------------------------------------------------------------------------------------------------------


@on_host
def test_copies_run_beside_the_turn_or_after_it(
    device: CupyDevice, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(device, small("partitions"))
    streams: list[int] = []
    copy = runtime.memcpyAsync

    def copied(target: int, source: int, size: int, kind: int, stream: int) -> None:
        streams.append(stream)
        copy(target, source, size, kind, stream)

    finish(loaded.run(1, limit_s=20))
    monkeypatch.setattr(runtime, "memcpyAsync", copied)
    together = finish(loaded.run(3, limit_s=20))
    apart = finish(loaded.run(3, limit_s=20, apart=True))
    assert len(set(streams[:3])) == len(set(streams[3:6])) == 1
    assert streams[0] != streams[3]
    assert runtime.graph_launches == 0, "a graph has no time in its middle"
    for timed in (together, apart):
        assert timed.turns_ms is not None
        assert (timed.turns_ms <= timed.times_ms).all()
    monkeypatch.undo()
    verdict = finish(loaded.check())
    assert (verdict.wrong, verdict.repetitions) == (0, 8)
    finish(loaded.poison())
    assert finish(loaded.run(2, each=2, limit_s=20)).turns_ms is None
    assert finish(loaded.check()).wrong == 0
    memory(loaded, "held")[:] += 1
    finish(loaded.run(2, limit_s=20))
    assert finish(loaded.check()).wrong > 0
    before = runtime.alive
    loaded.unload()
    assert before - runtime.alive >= 3, "the second stream and its two events"
