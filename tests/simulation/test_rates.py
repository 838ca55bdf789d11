"""The rates of a model: what each kind of work reaches, and how long a memory access takes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from whorl.simulation.models import A100, MODELS, V100, GpuModel
from whorl.simulation.rates import RATES, rates_of


def test_every_model_has_rates_and_lacks_what_it_lacks() -> None:
    assert set(RATES) == set(MODELS)
    assert rates_of(V100).flop_per_s(V100, "bf16", tensor=True) is None
    assert rates_of(A100).flop_per_s(A100, "fp8", tensor=True) is None
    assert rates_of(V100).flop_per_s(V100, "fp64", tensor=True) == rates_of(V100).flop_per_s(V100, "fp64", tensor=False)
    for model in MODELS.values():
        assert rates_of(model).vector["fp32"] * rates_of(model).sms == 2 * model.lanes


@pytest.mark.parametrize("model", MODELS.values(), ids=str)
def test_latency_grows_with_the_footprint_from_level_to_level(model: GpuModel) -> None:
    rates = rates_of(model)
    latencies = [rates.latency_ns(1 << power) for power in range(12, 36)]
    assert all(a[0] <= b[0] for a, b in pairwise(latencies))
    assert latencies[0] == (rates.l2_ns, rates.l2_ns)
    assert latencies[-1][0] == pytest.approx(rates.dram_ns, rel=0.01)
    assert all(scaling <= latency for latency, scaling in latencies)
