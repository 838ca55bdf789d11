"""Partial back-propagation: gradients against finite differences, layers that are left out, the cost of depth."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.kernels.transformer import BASES, LAYERS, _Arithmetic, forward, gradients
from whorl.kernels.work import Gemm, Work
from whorl.tests.kernels.hosting import SMALL, HostDevice, work_of
from whorl.tests.sizes import sample

WIDTH, TOKENS = 128, 8
EXACT = _Arithmetic()


def block(seed: int) -> dict[str, np.ndarray]:
    """A small block in float64 and what goes into it."""
    draw = np.random.default_rng(seed)
    inputs = {name: draw.uniform(-1.7, 1.7, (BASES, TOKENS, WIDTH)) for name in ("x", "slopes")}
    inputs |= {f"{name}{i}": draw.uniform(0.5, 1.5, (1, WIDTH)) for name in ("gain", "bias") for i in (1, 2)}
    for name, (rows, inner) in LAYERS.items():
        inputs[name] = draw.uniform(-1, 1, (rows * WIDTH, inner * WIDTH)) * (3 / inner / WIDTH) ** 0.5
    return inputs


@pytest.mark.long
@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_equal_finite_differences(layer: str) -> None:
    inputs, draw, step = block(1), np.random.default_rng(2), 1e-5
    slopes, layer_inputs = dict(gradients(forward(inputs, EXACT), EXACT))[layer]
    gradient = np.einsum("stm,stn->mn", slopes, layer_inputs)

    def loss(row: int, column: int, change: float) -> float:
        weights = inputs[layer].copy()
        weights[row, column] += change
        return float((forward(inputs | {layer: weights}, EXACT)["out"] * inputs["slopes"]).sum())

    for _ in range(4):
        row, column = (int(draw.integers(size)) for size in gradient.shape)
        difference = (loss(row, column, step) - loss(row, column, -step)) / (2 * step)
        assert gradient[row, column] == pytest.approx(difference, rel=1e-6, abs=1e-7 * np.abs(gradient).max())


def built(depth: int, **sizes: int) -> Work:
    return work_of("transformer-back", SMALL, **({"width": 128, "tokens": 16, "depth": depth} | sizes))


@pytest.mark.long
@pytest.mark.parametrize("depth", sample(range(1, len(LAYERS)), short=1))
def test_the_gradients_of_omitted_layers_are_exactly_zero_and_the_others_are_not(depth: int) -> None:
    device = HostDevice(built(depth, sequences=3), seed=4)
    device.run()
    assert device.wrong() == 0
    for place, name in enumerate(reversed(LAYERS)):
        gradient = device.arrays[f"d_{name}"]
        assert gradient[: gradient.size // 8].any() == (place < depth)
        if place >= depth:
            assert gradient.size == device.arrays[name].size
            gradient[7] = 1
    assert device.wrong() == len(LAYERS) - depth


def test_the_flop_of_each_layer_are_as_stated() -> None:
    counts = [built(depth, tokens=32, sequences=6).flop for depth in (1, 2, 3, 4)]
    square = 2 * 6 * 32 * 128**2
    forward_alone = 6 * 32 * (24 * 128**2 + 4 * 32 * 128)
    assert [counts[0] - forward_alone, *np.diff(counts)] == [
        4 * square,
        8 * square,
        5 * square,
        square * (4 + 4 * 32 / 128),
    ]


@pytest.mark.long
def test_each_repetition_begins_with_the_next_sequence_so_that_a_stale_result_is_wrong() -> None:
    """The product by w_up left out of one repetition: what stands there is of the repetition before."""
    work = work_of("transformer", width=128, tokens=8, sequences=3)
    device = HostDevice(work, seed=4)
    device.run()
    turn = work.turns[1]
    device.run(instead=tuple(step for step in turn if not (isinstance(step, Gemm) and step.b == "w_up")))
    assert device.wrong() > 0.9 * 3 * 8 * 128
