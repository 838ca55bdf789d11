"""What the checks promise of every kernel: all repetitions count, data know their place, and checking costs little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.kernels.catalogue import KERNELS, find_kernel
from whorl.kernels.checking import Counts, right_values
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.kernels.inputs import content_at, expected_words
from whorl.kernels.simulated_device import SimulatedDevice, check_s, facts_of, timing
from whorl.kernels.work import COUNTERS, Array, Buffer, Expected, Unfit, WordsExpected, Work
from whorl.probes.catalogue import PROBES, Kind, Probe
from whorl.probes.conditions import Asked
from whorl.probes.effort import EFFORTS
from whorl.probes.figures import find as figure
from whorl.probes.protocol import Measured, Unrun, measure
from whorl.probes.steps import Task
from whorl.simulation.bench import Bench
from whorl.simulation.fleet import Fleet
from whorl.simulation.models import A100, H100, H200, V100, GpuModel
from whorl.tests.kernels import compiling
from whorl.tests.kernels.device_memory import PAGE
from whorl.tests.kernels.fake_cupy import FakeRuntime
from whorl.tests.kernels.hosting import HostDevice, work_of
from whorl.tests.kernels.interpreter import Harm
from whorl.tests.kernels.test_arithmetic import COSTLY, SLOW, small_work
from whorl.tests.kernels.works import load, run
from whorl.tests.probes.hand_device import HandDevice
from whorl.tests.sizes import count, is_all, sample

MODELS = (V100, A100, H100, H200)
OVER_A_LINK = {"copy-h2d", "copy-d2h", "copy-p2p"}
"""Whose audit brings all data back: it takes as long as the repetition."""

needs_compiler = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


def built(name: str, model: GpuModel) -> Work | None:
    work = find_kernel(name).build(facts_of(model))
    return None if isinstance(work, Unfit) else work


# -- by the works alone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_every_repetition_is_checked_at_a_hundredth_of_the_time(name: str) -> None:
    for model in MODELS:
        work = built(name, model)
        if work is None:
            continue
        assert work.compared or work.outputs
        assert not work.lap or len(work.turns) % work.lap == 0
        assert (work.compared > 0) == (COUNTERS in work.buffers)
        window_s = 0.8
        repetitions = round(window_s / timing(work, model).unit_s)
        share = check_s(work, model, repetitions) / window_s
        assert share < (1.05 if name in OVER_A_LINK else 0.01)


@pytest.mark.long(short=3)
@pytest.mark.parametrize("name", [name for name in KERNELS if name not in COSTLY])
def test_no_address_bit_is_blind(name: str) -> None:
    """For every bit of an address below the size of a buffer, some element differs from that at the other address."""
    for model in sample(MODELS, short=1):
        work = built(name, model)
        if work is None:
            continue
        for buffer in work.buffers:
            if buffer.content is not None and not _is_constant(buffer):
                elements = _elements(buffer)
                assert _blind(buffer.count, buffer.dtype, elements) == [], (model.name, buffer.name)
        for result in {output.buffer for output in work.outputs}:
            buffer = next(buffer for buffer in work.buffers if buffer.name == result)
            assert _blind(buffer.count, buffer.dtype, _right(work, result)) == [], (model.name, result)


Elements = Callable[[NDArray[np.uint64]], NDArray[Any]]


def _is_constant(buffer: Buffer) -> bool:
    """Counters and logs begin with zeros."""
    return isinstance(buffer.content, Array) and not np.ptp(buffer.content.make(3))


def _elements(buffer: Buffer) -> Elements:
    return lambda places: content_at(3, buffer, places)


def _right(work: Work, name: str) -> Elements:
    """What the elements of a buffer must be after one lap, where it is a ring, or else after some repetition."""
    outputs = [output for output in work.outputs if output.buffer == name]
    slots = [output for output in outputs if (output.turn or 0) < work.lap] or outputs[:1]
    expected, size = [slot.expect(3, 5) for slot in slots], work.elements_of(slots[0])
    if isinstance(expected[0], WordsExpected):
        words = expected[0]
        return lambda places: expected_words(words, size, places)

    def elements(places: NDArray[np.uint64]) -> NDArray[Any]:
        slot, place = np.divmod(places, np.uint64(size))
        values = np.empty(places.size)
        for number, of_slot in enumerate(expected):
            assert isinstance(of_slot, Expected)
            values[slot == number] = right_values(of_slot, place[slot == number])[0]
        return values

    return elements


def _blind(size: int, dtype: str, elements: Elements) -> list[int]:
    """The bits of a place, of `size` elements, that no element shows, by 64 places for each."""
    draw, blind = np.random.default_rng(1), []
    for bit in range((size - 1).bit_length()):
        flipped = 1 << bit
        low = draw.integers(0, size - flipped, 64, dtype=np.uint64) & ~np.uint64(flipped)
        if np.array_equal(elements(low), elements(low | np.uint64(flipped))):
            blind.append(bit + (np.dtype(dtype).itemsize - 1).bit_length())
    return blind


def test_the_quick_suite_checks_all_that_it_runs() -> None:
    """On a simulated H100, with nobody watching."""
    device = SimulatedDevice(Bench(Fleet.draw(H100, 1, seed=1), began_ns=0), 0)
    quick = [probe for probe in PROBES.values() if probe.suite == "quick" and probe.kind is not Kind.IDLE]

    async def measured(probe: Probe) -> Measured | Unrun:
        return await measure(device, HandDevice(), Task(probe, Asked(EFFORTS["quick"]), first=False), find_kernel)

    for probe in quick:
        (result,) = device.bench.run([measured(probe)])
        assert isinstance(result, Measured), (probe.name, result)
        ran, checked = (figure(result.figures, name) for name in ("repetitions", "checked_repetitions"))
        assert ran == checked, probe.name
        assert ran is not None
        assert ran > 12  # patterns of memory


# -- on the stand-in for CuPy -----------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.long(short=2)
@pytest.mark.parametrize("name", sample(sorted(set(KERNELS) - SLOW - COSTLY), short=4))
def test_what_ran_is_checked_and_launches_that_write_nothing_are_found(
    name: str, device: CupyDevice, runtime: FakeRuntime
) -> None:
    loaded = load(device, small_work(name))
    finish(loaded.poison())
    ran = sum(run(loaded, repeats).repetitions for repeats in (1, 2))
    verdict = finish(loaded.check())
    lap = loaded.work.lap or 1
    assert (verdict.wrong, verdict.repetitions) == (0, -(-ran // lap) * lap)
    finish(loaded.poison())
    run(loaded, 1)
    runtime.dry = True
    run(loaded, 1)
    runtime.dry = False
    assert finish(loaded.check()).wrong > 0


STREAMS = [f"stream-{operation}" for operation in ("copy", "triad")]
CARRYING = [*STREAMS, *(f"copy-{path}" for path in ("h2d", "d2h", "d2d", "p2p")), "atomics", "stencil27"]
"""Whose results are the next repetition's inputs."""
CHECKED_AT_ONCE = [
    name
    for name in sorted(set(KERNELS) - {"launch", *CARRYING})
    if not name.startswith(("gemm-", "overlap-")) and small_work(name).outputs
]
"""Of the others, those with outputs; products and copies beside kernels have tests of their own."""


@needs_compiler
@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", sample([name for name in CHECKED_AT_ONCE if name not in COSTLY], short=2))
def test_every_single_bit_flip_of_an_output_is_found(name: str) -> None:
    device = HostDevice(small_work(name), seed=5)
    for _ in range(max(3, device.work.lap - 1)):
        device.run()
    for output in device.outputs:
        stored = device.arrays[output.buffer][output.at :][: output.count]
        width = 8 * stored.itemsize
        bits = stored.view(f"uint{width}")
        bits[7919 * np.arange(1, width + 1) % bits.size] ^= np.array([1 << bit for bit in range(width)], bits.dtype)
        assert device.wrong() >= min(width, bits.size)


@needs_compiler
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


@needs_compiler
@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", ["l2-read", "chase", "gather"])
def test_any_one_flipped_bit_of_what_is_loaded_is_found(name: str) -> None:
    work = small_work(name)
    device = HostDevice(work, seed=3)
    table = device.arrays[work.buffers[0].name]
    bits = np.arange(table.size) * (1 if name == "gather" else 37) % 32
    table ^= np.uint32(1) << bits.astype(np.uint32)
    device.run()
    assert device.wrong() == work.compared


@needs_compiler
def test_a_wrong_number_of_a_chain_is_told_by_its_place() -> None:
    device = HostDevice(small_work("fma-int32"), seed=3)
    numbers = device.arrays["expected"].reshape(-1, 256)
    for number, lane in ((9, 40), (5, 40), (2, 41)):
        numbers[number, lane] ^= 1
    device.run()
    assert Counts.of(device.arrays["faults"]).first == 40 * len(numbers) + 5


@needs_compiler
@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("name", "function", "operation", "chance"),
    [
        ("stream-triad", "stream_triad", "st", 1e-4),
        ("atomics", "count", "atom", 1e-6),
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
    for seed in range(4 if is_all() else 2):
        device = HostDevice(small_work(name), seed=3, poisoned=True)
        harm = Harm(function, operations=frozenset({operation}), chance=chance, bit=20, seed=seed)
        device.harms.append(harm)
        for _ in range(3):
            device.run()
        assert (device.wrong() > 0) == bool(harm.hits)


@needs_compiler
@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", sample(sorted(set(KERNELS) - {"launch", "sm"} - COSTLY), short=4))
def test_aliased_pages_are_found(name: str, device: CupyDevice, runtime: FakeRuntime) -> None:
    """The first page of the largest buffer and one behind its middle are the same memory."""
    loaded = load(device, small_work(name))
    largest = max(
        (buffer for buffer in loaded.work.buffers if buffer.place == "device"), key=lambda buffer: buffer.bytes
    )
    second = (largest.bytes // 2 // PAGE + 1) * PAGE
    if second + PAGE > largest.bytes:
        pytest.skip(f"{largest.name} has two pages at most")
    runtime.alias(loaded.address(largest.name), 0, second, PAGE)
    finish(loaded.poison())
    run(loaded, max(3, loaded.work.lap), each=1)
    assert finish(loaded.check()).wrong > 0


@needs_compiler
def test_one_wrong_repetition_in_ten_is_found_each_time(device: CupyDevice, runtime: FakeRuntime) -> None:
    work = work_of("fma-int32", device.facts, blocks=1, rounds=16)
    loaded, planted = load(device, work), set[int]()
    draw = np.random.default_rng(5)

    def is_wrong(launch: int) -> bool:
        if draw.random() < 0.1:
            planted.add(launch)
        return launch in planted

    run(loaded, 1)
    assert finish(loaded.check()).wrong == 0
    runtime.harms = [Harm("chains", operations=frozenset({"mad"}), sm=0, lane=5, launches=is_wrong)]
    hits = 0
    for _ in range(count(100, short=20)):
        run(loaded, 1)
        hits += finish(loaded.check()).wrong > 0
    assert hits == len(planted) > 0
