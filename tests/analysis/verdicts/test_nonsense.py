"""Runs whose figures are missing, zero, negative, infinite or absurd: sums that hold, and never an error."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.probing import CACHE, COMPUTE, LINK, MEMORY, OTHER, Probed
from whorl.analysis.verdicts.causes import Evidence
from whorl.analysis.verdicts.channels import channels
from whorl.tests.analysis.verdicts.made import RECORDS, campaign_of
from whorl.tests.sizes import sample

REASONS: tuple[dict[str, float] | None, ...] = (
    {}, {"power_cap": 1.0}, {"power_brake": 3.0, "hw_slowdown": 2.0}, {"thermal_software": 1e9}, None,
    {"power_brake": -5.0}, {"hw_slowdown": math.nan},
)  # fmt: skip
CONDITIONS: tuple[dict[str, Any] | None, ...] = (
    {},
    {"power_limit_w": -1.0},
    {"power_limit_w": None, "path": "peer"},
    None,
)
STATUS = ("ok", "ok", "ok", "wrong_result", "lost", None)
ODD = (None, math.nan, math.inf, 0.0, -1.0)
EFFECTS = (0.05, -0.02, 0.0, 1e-6, 0.3, math.nan, 2.0)


def nonsense(seed: int) -> Probed:
    """Up to 120 runs of up to 13 GPUs; one figure in ten is odd, and some are missing everywhere."""
    random = np.random.default_rng(seed)
    runs, gpus, probes = int(random.integers(0, 120)), int(random.integers(1, 14)), int(random.integers(1, 5))

    def any_of(some: tuple[Any, ...]) -> list[Any]:
        return [some[place] for place in random.integers(0, len(some), runs)]

    def figure(low: float, high: float) -> list[float | None]:
        shape, gone = random.random(), random.random() < 0.15
        usual = random.uniform(low, high, runs) if shape < 0.8 else low * np.exp(random.normal(0, 3, runs))
        usual = np.full(runs, low) if shape < 0.2 else usual
        odd = random.random(runs) < 0.1
        values = [
            ODD[random.integers(0, len(ODD))] if is_odd else float(v) for is_odd, v in zip(odd, usual, strict=True)
        ]
        return [None] * runs if gone else values

    start = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    probe = random.integers(0, probes, runs)
    began = [
        None if random.random() < 0.1 else start + timedelta(hours=float(random.uniform(-1000, 2000)))
        for _ in range(runs)
    ]
    kinds = (COMPUTE, MEMORY, CACHE, LINK, OTHER)
    texts: dict[str, list[Any]] = {
        "gpu": [f"g{place}" for place in random.integers(0, gpus, runs)],
        "workload": [f"w{place}" for place in probe],
        "stresses": [kinds[(3 * int(place) + seed) % 5] for place in probe],
        "model": [(None, "Tesla V100-SXM2-16GB", "H100")[seed % 3]] * runs,
        "status": any_of(STATUS),
        "run_id": [str(place) for place in range(runs)],
    }
    numbers = {
        "value": figure(1, 10), "sm_clock_mhz": figure(1000, 1530), "mem_clock_mhz": figure(800, 900),
        "temperature_c": figure(20, 95), "power_w": figure(50, 300), "power_limit_w": figure(200, 300),
        "energy": figure(0.1, 1), "wrong_elements": figure(0, 3), "checked_elements": figure(0, 5),
    }  # fmt: skip
    columns = [pl.Series(name, values, dtype=pl.String) for name, values in texts.items()]
    columns += [pl.Series(name, values, dtype=pl.Float64) for name, values in numbers.items()]
    records = {"clock_events": any_of(REASONS), "conditions": any_of(CONDITIONS)}
    columns += [pl.Series(name, values, dtype=RECORDS[name]) for name, values in records.items()]
    columns.append(pl.Series("began", began, dtype=pl.Datetime("us")))
    length = timedelta(seconds=int(random.choice([0, 2, 10])))
    return campaign_of(pl.DataFrame(columns).with_columns(ended=pl.col("began") + length))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", sample(range(20), short=5))
def test_nonsense_gives_sums_that_hold_and_no_error(seed: int) -> None:
    evidence = Evidence.of(nonsense(seed))
    assert all(rows["value"].is_finite().all() for rows in channels(evidence).values())
    assert all(fact.measured for fact in evidence.facts())
    random = np.random.default_rng(seed)
    for gpus in ("g0", "g1", "g2", ["g0", "g1"]):
        effects = {f"w{place}": float(random.choice(EFFECTS)) for place in range(4)}
        found = evidence.slow(gpus, effects)
        known = [effect for effect in effects.values() if math.isfinite(effect)]
        if known:
            whole = 100 * math.expm1(max(known))
            assert sum(one.pct for one in found.causes) == pytest.approx(whole, abs=1e-9, rel=1e-9)
        ends = [end for one in found.causes for end in (one.low_pct, one.pct, one.high_pct) if end is not None]
        assert np.isfinite(ends).all()
