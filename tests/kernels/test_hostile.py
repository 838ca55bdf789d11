"""Kernels that move data, on a GPU whose memory or arithmetic is wrong: what the check finds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.kernels.catalogue import find_kernel
from whorl.kernels.inputs import expected_words, filled, key, word
from whorl.kernels.work import Array, Buffer, Expectation, Expected, Words, Work
from whorl.tests.kernels import compiling
from whorl.tests.kernels.device_memory import PAGE
from whorl.tests.kernels.hosting import HostDevice, facts_of
from whorl.tests.kernels.interpreter import Harm
from whorl.tests.kernels.test_arithmetic import small_work
from whorl.tests.sizes import sample

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())

COPIES = [f"copy-{path}" for path in ("h2d", "d2h", "d2d", "p2p")]
STREAMS = [f"stream-{operation}" for operation in ("copy", "triad")]
CARRYING = [*STREAMS, *COPIES, "atomics", "stencil27"]
"""Whose results are the next repetition's inputs."""
LOADING = ["l2-read", "chase", "gather"]
"""Which compare what they load."""


@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", sample(CARRYING, short=3))
def test_each_flipped_bit_of_a_result_is_still_found_two_repetitions_later(name: str) -> None:
    device = HostDevice(small_work(name), seed=3)
    device.run()
    # A copy that is audited has gone back already.
    result = device.arrays["source" if device.work.lap else device.outputs[0].buffer].view(np.uint32)
    places = np.random.default_rng(5).choice(result.size, 32, replace=False)
    result[places] ^= np.uint32(1) << np.arange(32, dtype=np.uint32)
    device.run()
    device.run()
    wrong = device.wrong()
    assert wrong >= 32 if name == "stencil27" else wrong == 32


@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", LOADING)
def test_any_one_flipped_bit_of_what_is_loaded_is_found(name: str) -> None:
    work = small_work(name)
    device = HostDevice(work, seed=3)
    table = device.arrays[work.buffers[0].name]
    bits = np.arange(table.size) * (1 if name == "gather" else 37) % 32
    table ^= np.uint32(1) << bits.astype(np.uint32)
    device.run()
    assert device.wrong() == work.compared


@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", sample([*CARRYING, *LOADING], short=3))
@pytest.mark.parametrize("distance", [1, -1])
def test_two_pages_that_are_the_same_memory_are_found(name: str, distance: int) -> None:
    """In each large buffer: the first page and the next, or the last whole one."""
    work = small_work(name)
    large = [buffer for buffer in work.buffers if buffer.bytes >= 2 * PAGE and buffer.name != "faults"]
    assert large
    for buffer in large:
        device = HostDevice(work, seed=3, poisoned=True)
        second = PAGE if distance == 1 else buffer.bytes // PAGE * PAGE - PAGE
        device.memory.allocations[device.address(buffer.name)].alias(0, second, PAGE)
        if buffer.content is not None:
            device.arrays[buffer.name][:] = filled(3, buffer)
        for _ in range(3):
            device.run()
        assert device.wrong() > 0, buffer.name


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "function", "operation", "chance"),
    [
        ("pagerank", "finish", "fma.f32", 2e-4),
        ("pagerank", "spread", "fma.f32", 1e-4),
        ("stencil27", "sweep27", "fma.f32", 4e-8),
        ("stream-triad", "stream_triad", "mad.s32", 3e-5),
    ],
)
def test_a_wrong_operation_is_found_whenever_there_is_one(
    name: str, function: str, operation: str, chance: float
) -> None:
    """About one in three repetitions, so that some runs have none."""
    for seed in range(4):
        device = HostDevice(small_work(name), seed=3)
        harm = Harm(function, operations=frozenset({operation}), chance=chance, bit=20, seed=seed)
        device.harms.append(harm)
        for _ in range(3):
            device.run()
        assert (device.wrong() > 0) == bool(harm.hits)


SIZED = [*STREAMS, "copy-d2d", "stencil27", *LOADING]


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (9, 0)])
@pytest.mark.parametrize("name", SIZED)
def test_no_address_bit_is_blind_at_the_size_of_each_model(name: str, capability: tuple[int, int]) -> None:
    work = find_kernel(name).build(facts_of(capability))
    assert isinstance(work, Work)
    buffers = {buffer.name: buffer for buffer in work.buffers}
    filled_buffers: list[tuple[Buffer, Expectation | None]] = [
        (buffers[output.buffer], output.expect) for output in work.outputs if buffers[output.buffer].count > 1
    ]
    for buffer, expect in filled_buffers or [(work.buffers[0], None)]:
        draw = np.random.default_rng(1)
        for bit in range((buffer.count - 1).bit_length()):
            places = draw.integers(0, buffer.count, 2000).astype(np.uint64)
            others = places ^ np.uint64(1 << bit)
            inside = others < buffer.count
            assert inside.any()
            assert (at(buffer, expect, places[inside]) != at(buffer, expect, others[inside])).all(), bit


def at(buffer: Buffer, expect: Expectation | None, places: NDArray[np.uint64]) -> NDArray[np.generic]:
    """What must be at some places of a buffer after three repetitions, or is there at first."""
    if expect is None:
        if isinstance(buffer.content, Words):
            return word(key(7, buffer.name), places)
        assert isinstance(buffer.content, Array)
        period = buffer.content.make(7)
        periods, within = np.divmod(places.astype(np.int64), period.size)
        risen: NDArray[np.generic] = period[within] + (periods * buffer.content.rise).astype(period.dtype)
        return risen
    expected = expect(7, 3)
    if not isinstance(expected, Expected):
        return expected_words(expected, buffer.count, places)
    row, column = np.divmod(places.astype(np.int64), expected.columns)
    p, q = expected.values.shape
    right: NDArray[np.generic] = expected.values[row % p, column % q] + expected.rise * (row // p)
    return right
