"""Clock-derived peaks against the dense peak rates that NVIDIA's data sheets and white papers give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whorl.kernels.rounding import DTYPES
from whorl.kernels.sizing import TENSOR, VECTOR, flop_per_s
from whorl.simulation.models import MODELS, GpuModel
from whorl.simulation.rates import rates_of
from whorl.tests.kernels.hosting import SMALL

# Capability, SMs, boost clock in MHz (H100's tensor figures are given at 1830), TFLOP/s.
VECTORS = [
    ((6, 0), 56, 1480, {"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}),  # P100 SXM2
    ((7, 0), 80, 1530, {"fp64": 7.8, "fp32": 15.7, "fp16": 31.4}),  # V100 SXM2
    ((8, 0), 108, 1410, {"fp64": 9.7, "fp32": 19.5, "fp16": 78, "bf16": 39, "int32": 19.5}),  # A100
    ((8, 6), 84, 1740, {"fp32": 37.4}),  # A40
    ((8, 9), 142, 2520, {"fp32": 91.6}),  # L40S
    ((9, 0), 132, 1980, {"fp64": 33.5, "fp32": 66.9, "fp16": 133.8, "bf16": 133.8, "int32": 33.5}),  # H100 SXM
    ((10, 0), 148, 1980, {"fp64": 37.5, "fp32": 75, "fp16": 150}),  # B200
    ((10, 3), 160, 1980, {"fp64": 1.25, "fp32": 80}),  # B300
    ((12, 0), 188, 2617, {"fp64": 1.97, "fp32": 126, "fp16": 126}),  # RTX PRO 6000
]
MATRICES = [
    ((7, 0), 80, 1530, {"fp16": 125}),
    ((8, 0), 108, 1410, {"fp64": 19.5, "tf32": 156, "fp16": 312, "bf16": 312}),
    ((8, 6), 84, 1740, {"tf32": 74.8, "fp16": 149.7, "bf16": 149.7}),
    ((8, 9), 142, 2520, {"tf32": 183, "fp16": 362, "fp8": 733}),
    ((9, 0), 132, 1980, {"fp64": 66.9}),
    ((9, 0), 132, 1830, {"tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9}),
    ((10, 0), 148, 1860, {"tf32": 1125, "fp16": 2250, "bf16": 2250, "fp8": 4500, "fp64": 35}),
    ((10, 3), 148, 1860, {"tf32": 1125, "fp16": 2250, "bf16": 2250, "fp8": 4500}),
    ((12, 0), 188, 2617, {"tf32": 252, "fp16": 504, "fp8": 1008}),
]


@pytest.mark.parametrize(
    ("matrix", "capability", "sms", "clock", "rates"),
    [(matrix, *row) for matrix, table in ((False, VECTORS), (True, MATRICES)) for row in table],
)
def test_units_reach_their_peak(
    matrix: bool, capability: tuple[int, int], sms: int, clock: float, rates: dict[str, float]
) -> None:
    facts = replace(SMALL, capability=capability, sms=sms, max_clock_mhz=clock)
    for precision, tflop_s in rates.items():
        assert flop_per_s(facts, precision, matrix=matrix) == pytest.approx(1e12 * tflop_s, rel=0.02), precision


def test_precisions_are_those_of_works() -> None:
    assert {name for table in (VECTOR, TENSOR) for row in table.values() for name in row} <= set(DTYPES)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_simulated_model_has_the_peaks_of_the_real_one(model: GpuModel) -> None:
    """The simulation may know nothing of kernels, so the figures stand in both rooms."""
    rates = rates_of(model)
    assert dict(rates.tensor) == {name: 2 * lanes for name, lanes in TENSOR[rates.capability].items()}
    assert dict(rates.vector) == {name: 2 * lanes for name, lanes in VECTOR[rates.capability].items()}
