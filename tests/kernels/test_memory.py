"""Patterns over the memory and on each multiprocessor, by NVRTC's own code: what is wrong is found, and named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from whorl.errors import DeviceError
from whorl.kernels import memory, sm
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.cupy_device import cupy_devices
from whorl.kernels.device import finish
from whorl.probes.catalogue import find_probe
from whorl.probes.conditions import Asked
from whorl.probes.patterns import memory_size, of_memory, of_multiprocessors
from whorl.probes.protocol import Measured, Unrun, measure
from whorl.probes.steps import Task
from whorl.tests.checks import not_none
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import FakeRuntime
from whorl.tests.kernels.hosting import SMALL, HostDevice, facts_of, work_of
from whorl.tests.kernels.interpreter import Harm
from whorl.tests.probes.hand_device import QUICK, HandDevice

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())

LOADED = "is[u] = load_past_l1(memory + v + u * threads);"
SIZE = 1 << 18


def patterns(repetitions: int, **options: object) -> HostDevice:
    """So many of the patterns over a quarter of a MiB."""
    device = HostDevice(work_of("memory", size=SIZE), seed=1, **options)  # type: ignore[arg-type]
    for _ in range(repetitions):
        device.run()
    return device


def read_with(fault: str) -> Callable[[str], str]:
    """What makes the memory give something else than was written."""
    return lambda text: text.replace(LOADED, f"{{ {LOADED} {fault} }}")


def exercised(rounds: int = 1, *, harm: Harm | None = None, edit: tuple[str, str] | None = None) -> HostDevice:
    work = work_of("sm", dataclasses.replace(SMALL, shared_bytes=1 << 14), rounds=rounds, slab=1 << 14, far=1 << 14)
    device = HostDevice(work, seed=1, edit=None if edit is None else lambda text: text.replace(*edit))
    device.harms = [] if harm is None else [harm]
    device.run()
    return device


def test_every_pattern_comes_with_its_inverse_so_that_each_bit_is_tried_both_ways() -> None:
    device = patterns(0)
    for number in range(len(memory.PATTERNS)):
        device.run()
        if number % 2 == 0:
            words = device.arrays["memory"].copy()
        else:
            assert np.array_equal(words, ~device.arrays["memory"])
        if number == 0:
            assert np.unique(words).size > 0.99 * words.size, "two places hardly ever hold the same"
    assert device.wrong() == 0


def test_a_stuck_bit_is_named_with_its_place_and_patterns() -> None:
    device = patterns(4, edit=read_with("if (v + u * threads == 777) is[u].z |= 512u;"))
    log = memory.findings(device.arrays["log"])
    assert [(error.offset, error.actual ^ error.expected) for error in log.errors] == [(16 * 777 + 8, 512)] * 2
    assert {error.pattern for error in log.errors} == {"hash of the address, inverted", "address"}
    assert (log.rose, log.fell, log.addresses, log.pages) == (512, 0, 1, 1)
    assert device.wrong() == 2
    assert not device.arrays["faults"][4:].any(), "no multiprocessor is to blame"
    findings = of_memory(device.arrays["log"], device.work, SMALL)
    assert "offset 0x3098: 0x" in not_none(findings.detail)
    assert "(bit 9; pattern: hash of the address, inverted; read by multiprocessor " in not_none(findings.detail)


def test_multiprocessors_that_work_are_right_and_give_time_and_clock() -> None:
    device = exercised(2)
    assert device.wrong() == 0
    rows = sm.multiprocessors(device.arrays["sms"])
    assert [(row.number, row.blocks, row.wrong) for row in rows] == [(0, 2, 0), (1, 2, 0)]
    assert {row.clock_mhz for row in rows} == {2000.0}, "as the interpreter counts cycles and ns"
    three = of_multiprocessors(device.arrays["sms"], device.work, dataclasses.replace(SMALL, sms=3))
    assert three.note == "1 of 3 multiprocessors were not reached"


@pytest.mark.parametrize("operation", ["fma", "mad"])
def test_a_wrong_lane_of_one_multiprocessor_is_named(operation: str) -> None:
    device = exercised(harm=Harm("exercise", operations=frozenset({operation}), sm=1, lane=5, bit=3, chance=0.01))
    assert device.wrong() > 0
    (good, bad) = sm.multiprocessors(device.arrays["sms"])
    assert (good.wrong, bad.number, bad.lanes) == (0, 1, (5,))
    if operation == "fma":
        assert bad.parts == ("fp32",)
    assert device.arrays["faults"][4:7].tolist() == [0, bad.wrong, 0]
    findings = of_multiprocessors(device.arrays["sms"], device.work, SMALL)
    assert not_none(findings.detail).startswith(f"multiprocessor 1: {bad.wrong:,} wrong in ")
    assert not_none(findings.detail).endswith("found by lane 5")


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("registers", "= ~moved;", "= ~moved ^ (multiprocessor() == 1 && thread == 9 ? 16u : 0u);"),
        ("shared memory", "shared[i] != ", "(shared[i] ^ (multiprocessor() == 1 && i == 1014 ? 2u : 0u)) != "),
        ("L1 cache", "load_through_l1(slab + v)", "load_through_l1(slab + (multiprocessor() == 1 ? v ^ 1 : v))"),
        ("L2 cache", "load_past_l1(far + v)", "load_past_l1(far + (multiprocessor() == 1 ? v ^ 1 : v))"),
    ],
)
@pytest.mark.long(short=1)
def test_the_part_of_a_multiprocessor_that_is_wrong_is_named(part: str, old: str, new: str) -> None:
    rows = sm.multiprocessors(exercised(edit=(old, new)).arrays["sms"])
    assert [row.number for row in rows if row.wrong] == [1]
    assert rows[1].parts == (part,)


def test_a_multiprocessor_that_is_slow_is_named() -> None:
    row = sm.Multiprocessor(0, 2, 0, (), (), 1980.0, 100.0)
    rows = [dataclasses.replace(row, number=n, block_us=100 + n / 1000) for n in range(132)]
    rows[17] = dataclasses.replace(row, number=17, clock_mhz=1900.0, block_us=103.0)
    facts = facts_of((9, 0))
    findings = of_multiprocessors(sm.written(rows), work_of("sm", facts), facts)
    assert findings.note == "slower than the others by more than those differ: multiprocessor 17"
    assert findings.conditions == {"slow_sms": [17]}
    assert {"sm_spread", "slowest_sm", "sm_time", "sm_clock"} <= {figure.name for figure in findings.figures}


# -- as probes ----------------------------------------------------------------------------------------------------


def test_nearly_all_free_memory_is_tested() -> None:
    facts = facts_of((9, 0))
    device = dataclasses.replace(HandDevice(), facts=facts)
    size = memory_size(device)
    assert isinstance(size, int)
    work = work_of("memory", facts, size=size)
    assert 0.9 * device.free_bytes() <= work.memory_bytes <= device.free_bytes()
    assert work.bytes / 4.3e12 < 0.06, "s a pattern"


@pytest.mark.usefixtures("blas")
def test_memory_that_others_have_is_no_failure_and_an_ecc_error_is_one(runtime: FakeRuntime) -> None:
    runtime.memory_bytes = 1 << 23
    device = cupy_devices([0])[0]
    with device.using("a test"):
        others = runtime.malloc(int(0.99 * runtime.memory_bytes))
    probe, conditions = find_probe("memory"), Asked(QUICK)
    answer = finish(measure(device, HandDevice(), Task(probe, conditions, first=False), find_kernel))
    assert isinstance(answer, Unrun)
    assert "of the memory are free, the rest is taken by " in answer.reason

    with device.using("a test"):
        runtime.free(others)
    runtime.fail["launch"] = 214
    with pytest.raises(DeviceError, match="an uncorrectable ECC error happened in its memory") as caught:
        finish(measure(device, HandDevice(), Task(probe, conditions, first=False), find_kernel))
    assert caught.value.gone


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "parameters", "operation", "words"),
    [
        ("memory", {"size": 1 << 20}, "xor", "offset 0x"),
        ("sm", {"rounds": 1, "slab": 1 << 14, "far": 1 << 14}, "fma", "multiprocessor 2: "),
    ],
)
@pytest.mark.usefixtures("blas")
def test_a_probe_on_the_stand_in_names_what_is_wrong(
    runtime: FakeRuntime, name: str, parameters: dict[str, int], operation: str, words: str
) -> None:
    runtime.launch_s = 0.05
    probe, conditions = dataclasses.replace(find_probe(name), parameters=parameters), Asked(QUICK, time_limit_s=0.1)
    device = cupy_devices([0])[0]
    harm = Harm("write_pattern" if name == "memory" else None, operations=frozenset({operation}), sm=2, lane=7)
    for harms, status in (([], "ok"), ([harm], "wrong_result")):
        runtime.harms = harms
        answer = finish(measure(device, HandDevice(), Task(probe, conditions, first=False), find_kernel))
        assert isinstance(answer, Measured)
        assert answer.status == status
        detail = answer.status_detail
    assert words in str(detail)
    device.close()
