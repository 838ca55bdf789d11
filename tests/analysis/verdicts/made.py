"""A made-up fleet whose clocks, powers, temperatures and times follow simple rules, and GPUs of it that are changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.runs.probing import COMPUTE, LINK, MEMORY, Probed
from whorl.store.schema import arrow_schema

BEGAN = datetime(2026, 3, 2, tzinfo=UTC).replace(tzinfo=None)
RUN_S = 10.0
_OF_RUNS = pl.DataFrame(arrow_schema("runs").empty_table()).schema
RECORDS = {name: _OF_RUNS[name] for name in ("conditions", "clock_events", "versions")}
KAPPA = 0.95


@dataclass(frozen=True)
class Probe:
    """A workload: what it stresses, its kappa, its clock (MHz), power (W) and temperature (degC)."""

    name: str
    stresses: str
    kappa: float
    clock: float
    power: float
    temperature: float
    capped: bool = False


GEMM = Probe("gemm", COMPUTE, KAPPA, 1365, 297, 66, capped=True)
FMA = Probe("fma", COMPUTE, KAPPA, 1530, 220, 58)
STREAM = Probe("stream", MEMORY, 0.04, 1530, 145, 45)
COPY = Probe("copy", LINK, 0.0, 1530, 70, 35)
PROBES = (GEMM, FMA, STREAM, COPY)
Change = Mapping[str, Any]


def fleet(
    changes: Mapping[int, Mapping[str, Change]] | None = None,
    *,
    probes: Sequence[Probe] = PROBES,
    gpus: int = 40,
    sittings: int = 3,
    told: bool = True,
    model: str | None = "Tesla V100-SXM2-16GB",
    limit_w: float | None = 300.0,
    seed: int = 1,
) -> Probed:
    """Runs of all GPUs in all probes, once a sitting; sittings are a day apart.

    `changes`: by GPU and probe ("" for every probe), what is other than in a healthy run: `slower` (factor on the time,
    besides what the clock does), `clock` (factor), `power`, `temperature` (added), `events` (s by reason), `limit_w`,
    or any column of runs. `told`: whether reasons for clocks are recorded.
    """
    random = np.random.default_rng(seed)
    names = [f"GPU-{number:03d}" for number in range(gpus)]
    silicon, warmth = random.normal(0, 0.015, gpus), random.normal(0, 4, gpus)
    rows = []
    for day in range(sittings):
        for number, name in enumerate(names):
            for place, probe in enumerate(probes):
                change = {
                    **(changes or {}).get(number, {}).get("", {}),
                    **(changes or {}).get(number, {}).get(probe.name, {}),
                }
                held = silicon[number] - 0.0015 * warmth[number] if probe.capped else 0.0
                clock = probe.clock * np.exp(held + random.normal(0, 0.001)) * change.get("clock", 1.0)
                time = 10 * (probe.clock / clock) ** probe.kappa * change.get("slower", 1.0)
                began = BEGAN + timedelta(days=day, minutes=place)
                events = change.get("events", {"power_cap": 0.9 * RUN_S} if probe.capped else {})
                row = {
                    "run_id": f"{name}-{probe.name}-{day}", "workload": probe.name, "gpu": name,
                    "node": f"n{number // 4}", "slot": number % 4, "cabinet": None, "model": model,
                    "stresses": probe.stresses, "began": began, "ended": began + timedelta(seconds=RUN_S),
                    "sm_clock_mhz": clock, "mem_clock_mhz": 877.0,
                    "temperature_c": probe.temperature + warmth[number] + change.get("temperature", 0),
                    "power_w": probe.power * np.exp(random.normal(0, 0.002)) * change.get("power", 1.0),
                    "conditions": None, "clock_events": events if told else None, "status": "ok",
                    "status_detail": None, "power_limit_w": change.get("limit_w", limit_w),
                    "value": time * np.exp(random.normal(0, 0.0015)), "energy": 1.0, "efficiency": None,
                    "wrong_elements": 0.0, "checked_elements": 100.0,
                }  # fmt: skip
                rows.append(row | {key: value for key, value in change.items() if key in row})
    runs = pl.DataFrame(rows, schema_overrides=RECORDS, infer_schema_length=None)
    floats = ("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w", "power_limit_w", "value", "efficiency")
    texts = ("model", "cabinet", "status_detail")
    return campaign_of(runs.with_columns(pl.col(floats).cast(pl.Float64), pl.col(texts).cast(pl.String)))


def campaign_of(runs: pl.DataFrame) -> Probed:
    """Runs with the identity of their GPUs as a campaign; columns that are not there are null."""
    texts = ("node", "cabinet", "model", "status_detail", "stresses")
    numbers = ("slot", "mem_clock_mhz", "power_limit_w", "energy", "efficiency", "wrong_elements", "checked_elements")
    kinds = (
        dict.fromkeys(texts, pl.String()) | dict.fromkeys(numbers, pl.Float64()) | {"status": pl.String(), **RECORDS}
    )
    missing = [pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in runs.columns]
    runs = runs.with_columns(*missing).with_columns(pl.col("slot").cast(pl.Int64))
    identity = runs.unique("gpu", maintain_order=True).select(
        "gpu", "node", "cabinet", "slot", "model", "power_limit_w"
    )
    unknown = pl.lit(None, pl.Int64)
    gpus = identity.with_columns(temperature_max_operating_c=unknown, temperature_slowdown_c=unknown)
    nothing: dict[str, Any] = {
        "gpu": pl.String,
        "node": pl.String,
        "kind": pl.String,
        "code": pl.Int64,
        "detail": pl.String,
    }
    return Probed("made", "", gpus, runs, pl.DataFrame(schema={"ts": pl.Datetime("us"), **nothing}))
