"""Kernels that move data, on a GPU whose memory or arithmetic is wrong: what the check finds."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.tests.kernels import compiling
from whorl.tests.kernels.hosting import HostDevice
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
