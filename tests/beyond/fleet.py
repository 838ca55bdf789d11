"""A small store with energy to share out, for answers that are made in parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from whorl.store import Store
from whorl.tests.stores import new_store

S, DAY_S = 10**9, 86_400
BEGAN_NS = 1_793_577_600 * S  # 2026-11-02
GPUS = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(8)]


def fleet(root: Path) -> Store:
    """Two days of eight GPUs, a reading every 60 s, and a job of each of two users on each GPU and day."""
    store, rng = new_store(root), np.random.default_rng(44)
    seconds = np.arange(0, 2 * DAY_S, 60)
    busy = (seconds % DAY_S > 10_000) & (seconds % DAY_S < 70_000)
    watts = np.where(busy, rng.uniform(150, 300, (len(GPUS), 1)), 60.0) + rng.normal(0, 1, (len(GPUS), len(seconds)))
    for day in range(2):
        of_day = seconds // DAY_S == day
        telemetry = {
            "ts": pa.array(np.tile(BEGAN_NS + seconds[of_day] * S, len(GPUS)), pa.timestamp("ns")),
            "cluster": ["c"] * (len(GPUS) * of_day.sum()),
            "gpu": np.repeat(GPUS, of_day.sum()),
            "power_mw": pa.array(np.rint(1000 * watts[:, of_day]).ravel().astype(np.int32)),
            "utilization": pa.array(np.tile(100 * busy[of_day], len(GPUS)).astype(np.int32)),
        }
        store.append({"telemetry": pa.table(telemetry)}, f"day-{day}")
    began = [BEGAN_NS + (day * DAY_S + 10_000 + 30_000 * turn) * S for day in range(2) for turn in range(2)]
    ids = [f"{gpu}-{number}" for gpu in range(len(GPUS)) for number in range(len(began))]
    stamps = {
        "began": pa.array(began * len(GPUS), pa.timestamp("ns")),
        "ended": pa.array([start + 30_000 * S for start in began] * len(GPUS), pa.timestamp("ns")),
    }
    jobs = {
        "cluster": ["c"] * len(ids), "allocation": ids, "job_id": ids, "gpu": np.repeat(GPUS, len(began)),
        "user": ["ada", "bea"] * (len(ids) // 2), "share": np.ones(len(ids)), "recorded": stamps["ended"], **stamps,
    }  # fmt: skip
    identities = {
        "cluster": ["c"] * len(GPUS), "gpu": GPUS, "model": ["A100"] * len(GPUS),
        "power_limit_mw": pa.array([350_000] * len(GPUS)),
    }  # fmt: skip
    store.append({"jobs": pa.table(jobs), "gpus": pa.table(identities)}, "facts")
    return store
